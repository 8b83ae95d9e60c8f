"""Neural networks: Module, layers and losses, with PyTorch's names."""

from __future__ import annotations

# Layers hand out Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.missing_names import missing_from as _missing_from
from mpgrad.nn import functional, init, parallel, utils
from mpgrad.nn.activations import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from mpgrad.nn.batch_norm import BatchNorm1d, BatchNorm2d
from mpgrad.nn.containers import ModuleList, Sequential
from mpgrad.nn.layer_norm import LayerNorm
from mpgrad.nn.layers import AvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d
from mpgrad.nn.losses import CrossEntropyLoss, MSELoss
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import Parameter

__all__ = [
    "functional",
    "init",
    "parallel",
    "utils",
    "Module",
    "Parameter",
    "Sequential",
    "ModuleList",
    "Linear",
    "Conv2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "LayerNorm",
    "ReLU",
    "Tanh",
    "Sigmoid",
    "GELU",
    "SiLU",
    "Softmax",
    "LogSoftmax",
    "Flatten",
    "Dropout",
    "MaxPool2d",
    "AvgPool2d",
    "CrossEntropyLoss",
    "MSELoss",
]

__getattr__ = _missing_from(__name__)
