"""PyTorch's names of what mpgrad calls otherwise: older ones, and private ones in use."""

from __future__ import annotations

from mpgrad.autograd.function import FunctionContext as FunctionCtx
from mpgrad.linalg import LinAlgError as _LinAlgError
from mpgrad.nn.batch_norm import BatchNorm as _BatchNorm
from mpgrad.nn.batch_norm import ChannelNorm as _NormBase
from mpgrad.nn.convolution_layers import _Convolution as _ConvNd
from mpgrad.nn.convolution_layers import _Transposed as _ConvTransposeNd
from mpgrad.nn.group_norm_layers import _InstanceNorm
from mpgrad.nn.init import fans as _calculate_fan_in_and_fan_out
from mpgrad.nn.layers import Dropout as _DropoutNd
from mpgrad.nn.losses import _Loss
from mpgrad.nn.losses import _Loss as _WeightedLoss
from mpgrad.nn.recurrent import _Recurrent as RNNBase
from mpgrad.nn.utils import clip_grad_norm_ as clip_grad_norm

__all__ = [
    "FunctionCtx",
    "RNNBase",
    "_BatchNorm",
    "_ConvNd",
    "_ConvTransposeNd",
    "_DropoutNd",
    "_InstanceNorm",
    "_LinAlgError",
    "_Loss",
    "_NormBase",
    "_WeightedLoss",
    "_calculate_fan_in_and_fan_out",
    "clip_grad_norm",
]
