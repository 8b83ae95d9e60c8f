"""Layers that learn from their first input how many features or channels it has."""

from __future__ import annotations

from typing import Any, ClassVar

from mpgrad.nn.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from mpgrad.nn.convolution_layers import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from mpgrad.nn.group_norm_layers import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from mpgrad.nn.layers import Linear, Weighted
from mpgrad.nn.module import Module
from mpgrad.nn.parameter import UninitializedBuffer, UninitializedParameter, is_uninitialized
from mpgrad.recording.tensors.tensor import Tensor


class _Lazy(Module):
    """The first call makes the parameters, and the layer one of the class ``cls_to_become``.

    An optimizer may have the parameters before: they stay the same objects.
    """

    cls_to_become: ClassVar[type[Module]]
    #: The layer's attribute with the number that the input tells.
    _counts: ClassVar[str] = "in_channels"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(args[0] if args else kwargs["input"])
        self.__class__ = self.cls_to_become  # type: ignore[assignment]
        return self(*args, **kwargs)

    def initialize_parameters(self, input: Tensor) -> None:
        """Make the parameters for inputs like this one; those that a state dict has made stay."""
        count = self._count(input)
        setattr(self, self._counts, count)
        if self.has_uninitialized_params():
            for tensor in (*self.parameters(), *self.buffers()):
                if is_uninitialized(tensor):
                    tensor.materialize(self._shape_of(tensor, count))  # type: ignore[attr-defined]
            self.reset_parameters()  # type: ignore[operator]

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or a buffer has no shape yet."""
        return any(map(is_uninitialized, (*self.parameters(), *self.buffers())))

    def _count(self, input: Tensor) -> int:
        raise NotImplementedError

    def _shape_of(self, tensor: Tensor, count: int) -> tuple[int, ...]:
        raise NotImplementedError


class _LazyWeighted(_Lazy, Weighted):
    """A lazy layer with a weight and perhaps a bias."""

    def _make_parameters(
        self, shape: tuple[int, ...], bias: bool, outputs: int, **made: Any
    ) -> None:
        self._shape, self._outputs = shape, outputs
        self.weight = UninitializedParameter(**made)
        if bias:
            self.bias = UninitializedParameter(**made)
        else:
            self.register_parameter("bias", None)

    def _shape_of(self, tensor: Tensor, count: int) -> tuple[int, ...]:
        if tensor is self.bias:
            return (self._outputs,)
        groups = getattr(self, "groups", 1)
        if getattr(self, "transposed", False):
            return (count, *self._shape[1:])
        return (self._shape[0], count // groups, *self._shape[2:])


class _LazyConvolution(_LazyWeighted):
    _dims: int

    def _count(self, input: Tensor) -> int:
        if input.ndim not in (self._dims + 1, self._dims + 2):
            raise RuntimeError(
                f"Expected {self._dims + 1}D (unbatched) or {self._dims + 2}D (batched) input to "
                f"{type(self).__name__}, but got input of size: {list(input.shape)}"
            )
        count = int(input.shape[-self._dims - 1])
        groups = getattr(self, "groups", 1)
        if count % groups:
            raise ValueError(f"in_channels must be divisible by groups, got {count} and {groups}")
        return count


class LazyLinear(_LazyWeighted, Linear):
    """``Linear`` whose ``in_features`` is the last length of its first input."""

    cls_to_become = Linear
    _counts = "in_features"

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(0, out_features, bias, device, dtype)

    def _count(self, input: Tensor) -> int:
        return int(input.shape[-1])


class _LazyOfChannels:
    """The constructor of a layer without its first argument, the number of input channels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(0, *args, **kwargs)  # type: ignore[call-arg]


class LazyConv1d(_LazyOfChannels, _LazyConvolution, Conv1d):
    """``Conv1d`` without ``in_channels``."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyOfChannels, _LazyConvolution, Conv2d):
    """``Conv2d`` without ``in_channels``."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyOfChannels, _LazyConvolution, Conv3d):
    """``Conv3d`` without ``in_channels``."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyOfChannels, _LazyConvolution, ConvTranspose1d):
    """``ConvTranspose1d`` without ``in_channels``."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyOfChannels, _LazyConvolution, ConvTranspose2d):
    """``ConvTranspose2d`` without ``in_channels``."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyOfChannels, _LazyConvolution, ConvTranspose3d):
    """``ConvTranspose3d`` without ``in_channels``."""

    cls_to_become = ConvTranspose3d


class _LazyNorm(_LazyOfChannels, _Lazy):
    """A normalisation without ``num_features``; its statistics are made with its parameters."""

    _counts = "num_features"

    def __init__(self, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, device=device, dtype=dtype, **kwargs)
        for name, value in list(self._parameters.items()):
            if value is not None:
                setattr(self, name, UninitializedParameter(device=device, dtype=dtype))
        for name in ("running_mean", "running_var"):
            if self._buffers.get(name) is not None:
                setattr(self, name, UninitializedBuffer(device=device, dtype=dtype))

    def _count(self, input: Tensor) -> int:
        takes_unbatched = isinstance(self, InstanceNorm1d | InstanceNorm2d | InstanceNorm3d)
        batched = not takes_unbatched or input.ndim in self._dimensions
        return int(input.shape[1 if batched else 0])

    def _shape_of(self, tensor: Tensor, count: int) -> tuple[int, ...]:
        return (count,)


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """``BatchNorm1d`` without ``num_features``."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """``BatchNorm2d`` without ``num_features``."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """``BatchNorm3d`` without ``num_features``."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """``InstanceNorm1d`` without ``num_features``."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """``InstanceNorm2d`` without ``num_features``."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """``InstanceNorm3d`` without ``num_features``."""

    cls_to_become = InstanceNorm3d
