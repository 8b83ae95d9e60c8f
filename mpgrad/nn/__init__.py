"""Neural networks: Module, layers and losses, with PyTorch's names."""

from __future__ import annotations

# Layers hand out Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.nn import functional, init, parallel, utils
from mpgrad.nn.activations import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from mpgrad.nn.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from mpgrad.nn.containers import ModuleDict, ModuleList, Sequential
from mpgrad.nn.layer_norm import LayerNorm
from mpgrad.nn.layers import (
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    Unflatten,
)
from mpgrad.nn.losses import CrossEntropyLoss, MSELoss
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter
from mpgrad.nn.parameter_containers import ParameterDict, ParameterList

__all__ = [
    "functional",
    "init",
    "parallel",
    "utils",
    "Module",
    "Parameter",
    "Sequential",
    "ModuleList",
    "ModuleDict",
    "ParameterList",
    "ParameterDict",
    "Identity",
    "Linear",
    "Conv2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "LayerNorm",
    "ReLU",
    "Tanh",
    "Sigmoid",
    "GELU",
    "SiLU",
    "Softmax",
    "LogSoftmax",
    "CELU",
    "ELU",
    "GLU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "PReLU",
    "ReLU6",
    "SELU",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanhshrink",
    "Threshold",
    "Flatten",
    "Unflatten",
    "Dropout",
    "MaxPool2d",
    "AvgPool2d",
    "CrossEntropyLoss",
    "MSELoss",
]
