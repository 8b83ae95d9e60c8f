"""node_name(): the names of operators' Nodes, as in PyTorch, whose users look for these names.

PyTorch calls the Node of its operator ``log_softmax`` ``LogSoftmaxBackward0``. The number tells
variants of one operator apart: ``pow`` of a tensor and a number is 0, of two tensors 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: ``(inputs, attributes) -> name``, if PyTorch has several operators for one of mpgrad's.
Naming = Callable[[Sequence[Any], dict[str, Any]], str]


def node_name(operator: str) -> str | Naming:
    """The name of an operator's Nodes, or a function that returns it for a call."""
    found = _NAMES.get(operator)
    if found is None:
        return "".join(word[:1].upper() + word[1:] for word in operator.split("_")) + "Backward0"
    return found


def _pow(inputs: Sequence[Any], attributes: dict[str, Any]) -> str:
    base, exponent = (isinstance(value, _NUMBERS) for value in inputs)
    return "PowBackward2" if base else f"PowBackward{int(not exponent)}"


def _matmul(inputs: Sequence[Any], attributes: dict[str, Any]) -> str:
    left, right = inputs
    is_plain = left._array.ndim == 2 == right._array.ndim
    return "MmBackward0" if is_plain else "BmmBackward0"


def _getitem(inputs: Sequence[Any], attributes: dict[str, Any]) -> str:
    """PyTorch records one Node per dimension that a key changes; this is the last of them."""
    if len(inputs) > 1:
        return "IndexBackward0"
    changing = [item for item in attributes["key"] if item not in (Ellipsis, slice(None))]
    if not changing:
        return "AliasBackward0"
    if changing[-1] is None:
        return "UnsqueezeBackward0"
    return "SliceBackward0" if isinstance(changing[-1], slice) else "SelectBackward0"


def _by_dim(name: str) -> Naming:
    """``name`` with 0 for a reduction over everything, 1 for one over some dimensions."""
    return lambda inputs, attributes: f"{name}{int(attributes['dim'] is not None)}"


def _by_last(name: str) -> Naming:
    """``name`` with 0 if the last input is a Python number, else with 1."""
    return lambda inputs, attributes: f"{name}{int(not isinstance(inputs[-1], _NUMBERS))}"


_NUMBERS = (int, float, complex)

#: The names that differ from the operator's name with ``Backward0``.
_NAMES: dict[str, str | Naming] = {
    "arccos": "AcosBackward0",
    "arccosh": "AcoshBackward0",
    "arcsin": "AsinBackward0",
    "arcsinh": "AsinhBackward0",
    "arctan": "AtanBackward0",
    "arctan2": "Atan2Backward0",
    "arctanh": "AtanhBackward0",
    "avg_pool2d": "AvgPool2DBackward0",
    "batch_norm": "NativeBatchNormBackward0",
    "clamp": "ClampBackward1",
    "clamp_between": "ClampBackward0",
    "conv2d": "ConvolutionBackward0",
    "copy": "CopyBackwards",
    "copy_slices": "CopySlices",
    "diagonal_scatter": "DiagonalBackwardBackward0",
    "dropout": "NativeDropoutBackward0",
    "fill": "FillBackward2",
    "floored_quotient": "DivBackward2",
    "gather_to_device": "Gather",
    "gelu_tanh": "GeluBackward0",
    "getitem": _getitem,
    "index_put": "IndexPutBackward0",
    "group_norm": "NativeGroupNormBackward0",
    "layer_norm": "NativeLayerNormBackward0",
    "linear": "AddmmBackward0",
    "log1p": "Log1PBackward0",
    "logsigmoid": "LogSigmoidBackward0",
    "masked_fill": _by_last("MaskedFillBackward"),
    "matmul": _matmul,
    "max_of_all": "MaxBackward1",
    "max_pool2d": "MaxPool2DWithIndicesBackward0",
    "mean": _by_dim("MeanBackward"),
    "min_of_all": "MinBackward1",
    "norm": "LinalgVectorNormBackward0",
    "pow": _pow,
    "prod": _by_dim("ProdBackward"),
    "remainder": _by_last("RemainderBackward"),
    "reshape": "ViewBackward0",
    "round_decimals": "RoundBackward1",
    "scatter_to_devices": "Scatter",
    "square": "PowBackward0",
    "sum": _by_dim("SumBackward"),
    "sum_backward": "ExpandBackward0",
    "take_along_axis": "GatherBackward0",
    "truncated_quotient": "DivBackward2",
    "to_device": "ToCopyBackward0",
}
