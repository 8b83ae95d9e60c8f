"""Attaches to Tensor what needs the operators: arithmetic, methods, conversions.

Importing this module is what makes Tensor complete; ``mpgrad`` does so before it hands out any
operator or Tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.autograd import variable
from mpgrad.autograd.modes import overrides
from mpgrad.device import Device, as_device
from mpgrad.device_arrays import address, usable
from mpgrad.ops import (
    activation,
    arithmetic,
    catalogue,  # noqa: F401  (registers every operator)
    comparison,
    complex_numbers,
    indexing,
    linalg,
    norms,
    ordering,
    overwriting,
    products,
    reduction,
    selection,
    shape,
    transcendental,
)
from mpgrad.ops.device_moves import to_device
from mpgrad.ops.promotion import cast
from mpgrad.tensor import Tensor
from mpgrad.tensor_methods import (
    copies,
    display,
    history,
    in_place,
    in_place_composed,
    numpy_functions,
    values,
)

if TYPE_CHECKING:
    from mpgrad.autograd.backward import Place

Array = np.ndarray[Any, Any]

# ------------------------------------------------------------------------ Python's operators

_OPERANDS = (Tensor, int, float, complex, np.ndarray, np.generic)


def _infix(function: Callable[..., Tensor], *, reflected: bool = False) -> Callable[..., Any]:
    """``function`` as a special method: an operand that it does not know is left to the other."""

    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return method


_INFIX: dict[str, Callable[..., Tensor]] = {
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "truediv": arithmetic.div,
    "floordiv": arithmetic.floor_divide,
    "mod": arithmetic.remainder,
    "pow": arithmetic.pow,
    "matmul": linalg.matmul,
}
_COMPARISONS = {
    "__eq__": comparison.eq,
    "__ne__": comparison.ne,
    "__lt__": comparison.lt,
    "__le__": comparison.le,
    "__gt__": comparison.gt,
    "__ge__": comparison.ge,
    "__and__": comparison.bitwise_and,
    "__or__": comparison.bitwise_or,
    "__xor__": comparison.bitwise_xor,
}


# ------------------------------------------------------------------------ size and place


def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or the length of one dimension."""
    return self.shape if dim is None else self.shape[dim]


def numel(self: Tensor) -> int:
    """The number of elements."""
    return self._array.size


def element_size(self: Tensor) -> int:
    """Bytes per element."""
    return self._array.itemsize


def is_contiguous(self: Tensor) -> bool:
    """Whether the elements lie in order without gaps."""
    return self._array.flags.c_contiguous


def stride(self: Tensor, dim: int | None = None) -> Any:
    """Steps between neighbours along each dimension, in elements."""
    strides = tuple(step // self._array.itemsize for step in self._array.strides)
    return strides if dim is None else strides[dim]


def data_ptr(self: Tensor) -> int:
    """The address of the first element, on its device."""
    return address(self._array)


def to(
    self: Tensor,
    *args: Any,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
) -> Tensor:
    """In another dtype or on another device: ``to(dtype)``, ``to(device)``, ``to(other)``.

    Differentiable; the tensor itself where nothing changes and ``copy`` is False.

    Args:
        self: the tensor.
        args: a dtype, a device (its name, or the number of a GPU), or a tensor for both.
        dtype: of the result.
        device: of the result.
        non_blocking: kept for PyTorch's callers; copies to a GPU do not block anyway.
        copy: also where nothing changes.

    Raises:
        RuntimeError: there is no such device.
    """
    for argument in args:
        if isinstance(argument, Tensor):
            dtype, device = argument.dtype, argument.device
        elif isinstance(argument, Device) or _names_device(argument):
            device = argument
        elif argument is not None and not isinstance(argument, bool):
            dtype = argument
    result = self if device is None else to_device(self, usable(device))
    result = result if dtype is None else cast(result, dtype)
    return shape.clone(self) if copy and result is self else result


def _names_device(argument: Any) -> bool:
    if isinstance(argument, int) and not isinstance(argument, bool):
        return True
    if not isinstance(argument, str):
        return False
    try:
        as_device(argument)
    except RuntimeError:
        return False
    return True


def cpu(self: Tensor) -> Tensor:
    """On the CPU."""
    return to(self, device="cpu")


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """On a GPU: that one, or the thread's current one.

    Raises:
        RuntimeError: there is none.
    """
    return to(self, device="cuda" if device is None else device)


def get_device(self: Tensor) -> int:
    """The number of the GPU, -1 on the CPU."""
    index = self.device.index
    return -1 if index is None else index


def _in_dtype(dtype: Any) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return cast(self, dtype)

    method.__doc__ = f"In {np.dtype(dtype)} (differentiable where that is a floating dtype)."
    return method


def _part(view: Callable[[Tensor], Tensor]) -> property:
    """``z.real`` or ``z.imag``; assigning changes ``z`` in place."""

    def assign(self: Tensor, value: Any) -> None:
        view(self)[...] = value

    return property(view, assign)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """In the dtype of ``other``."""
    return cast(self, other.dtype)


def is_floating_point(self: Tensor) -> bool:
    """Whether the dtype is a floating one."""
    return self.dtype.kind == "f"


# ------------------------------------------------------------------------ the graph


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Place | Sequence[Place] | dict[str, Tensor] | None = None,
) -> None:
    """Add the derivative of this tensor to ``.grad`` of the leaves that it depends on.

    Args:
        gradient: of something with respect to this tensor; may be left out for a single element.
        retain_graph: keep saved tensors for another backward (default: ``create_graph``).
        create_graph: record the backward itself, for higher derivatives.
        inputs: accumulate into these only, instead of all leaves.

    Raises:
        RuntimeError: the tensor does not require grad, or the graph's saved tensors are gone.
    """
    from mpgrad.autograd.backward import backward as run

    if type(self) is not Tensor and overrides.is_overridden((self,)):
        overrides.call_override(
            Tensor.backward, (self,), self, gradient=gradient, retain_graph=retain_graph,
            create_graph=create_graph, inputs=inputs,
        )  # fmt: skip
        return
    run(self, gradient, retain_graph, create_graph, inputs=inputs)


# ------------------------------------------------------------------------ attaching

#: Families whose functions are methods too, and those of them that are not.
_FAMILIES: tuple[tuple[Any, str], ...] = (
    (arithmetic, "where"),
    (comparison, ""),
    (transcendental, ""),
    (reduction, ""),
    (products, ""),
    (norms, "normalize cosine_similarity"),
    (shape, "cat stack"),
    (indexing, ""),
    (overwriting, ""),
    (selection, ""),
    (ordering, ""),
    (complex_numbers, "complex imag polar real view_as_complex view_as_real"),
    (linalg, "linear tensordot"),
)

_METHODS: dict[str, Callable[..., Any]] = {
    "size": size,
    "dim": lambda self: self.ndim,
    "numel": numel,
    "nelement": numel,
    "element_size": element_size,
    "is_contiguous": is_contiguous,
    "stride": stride,
    "data_ptr": data_ptr,
    "to": to,
    "type": cast,
    "type_as": type_as,
    "cpu": cpu,
    "cuda": cuda,
    "get_device": get_device,
    "float": _in_dtype(np.float32),
    "double": _in_dtype(np.float64),
    "half": _in_dtype(np.float16),
    "long": _in_dtype(np.int64),
    "int": _in_dtype(np.int32),
    "bool": _in_dtype(np.bool_),
    "cfloat": _in_dtype(np.complex64),
    "cdouble": _in_dtype(np.complex128),
    "is_floating_point": is_floating_point,
    "detach": history.detach,
    "detach_": history.detach_,
    "backward": backward,
    "softmax": activation.softmax,
    "log_softmax": activation.log_softmax,
    "where": lambda self, condition, other: arithmetic.where(condition, self, other),
    "view_as": lambda self, other: shape.view(self, other.shape),
    "reshape_as": lambda self, other: shape.reshape(self, other.shape),
    "expand_as": lambda self, other: shape.expand(self, other.shape),
    "absolute": arithmetic.abs,
    "negative": arithmetic.neg,
    "multiply": arithmetic.mul,
    "divide": arithmetic.div,
    "subtract": arithmetic.sub,
    "clip": arithmetic.clamp,
    "swapaxes": shape.transpose,
    "swapdims": shape.transpose,
    "moveaxis": shape.movedim,
    "__neg__": arithmetic.neg,
    "__pos__": lambda self: self,
    "__abs__": arithmetic.abs,
    "__invert__": comparison.bitwise_not,
    "__getitem__": indexing.getitem,
    "__hash__": object.__hash__,
    "__repr__": display.represent,
    "__dir__": display.attributes,
}

_PROPERTIES: dict[str, property] = {
    "data": property(history.get_data, history.set_data, history.delete_data),
    "T": property(lambda self: shape.permute(self, tuple(reversed(range(self.ndim))))),
    "mT": property(lambda self: shape.transpose(self, -2, -1)),
    **{name: _part(part) for name, part in complex_numbers.PARTS.items()},
    "H": property(complex_numbers.conjugate_transpose),
    "mH": property(complex_numbers.adjoint),
    "nbytes": property(lambda self: self._array.nbytes),
    "itemsize": property(element_size),
    "is_cuda": property(lambda self: self.device.type == "cuda"),
    "is_cpu": property(lambda self: self.device.type == "cpu"),
}


def _attach() -> None:
    for family, excluded in _FAMILIES:
        for member in set(family.__all__).difference(excluded.split()):
            setattr(Tensor, member, getattr(family, member))
    for name, function in _INFIX.items():
        setattr(Tensor, f"__{name}__", _infix(function))
        setattr(Tensor, f"__r{name}__", _infix(function, reflected=True))
    for name, function in _COMPARISONS.items():
        setattr(Tensor, name, _infix(function))
    for table in (
        _METHODS,
        _PROPERTIES,
        values.METHODS,
        copies.METHODS,
        numpy_functions.METHODS,
        in_place.METHODS,
        in_place_composed.METHODS,
        overrides.METHODS,
        variable.PROPERTIES,
    ):
        for name, member in table.items():
            setattr(Tensor, name, member)


_attach()
