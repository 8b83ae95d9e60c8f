"""Attaches the parts of Tensor that need the operators: arithmetic, methods, properties.

Importing this module completes Tensor; ``mpgrad`` does so before it returns any operator or Tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import mpgrad.ops.catalogue  # noqa: F401  (registers every operator)
from mpgrad.autograd import variable
from mpgrad.autograd.function import Function
from mpgrad.autograd.running import engine_slot
from mpgrad.base.user_frames import hide_our_frames
from mpgrad.ops import random
from mpgrad.ops.by_index import indexing, overwriting, scatter_reductions, scattering, selection
from mpgrad.ops.calling import aliases, older_forms
from mpgrad.ops.elementwise import (
    arithmetic,
    bit_patterns,
    comparison,
    complex_numbers,
    minimum_maximum,
    piecewise,
    rounding,
    signs_and_remainders,
    special,
    transcendental,
)
from mpgrad.ops.linear_algebra import (
    linear_systems,
    matrices,
    matrix_functions,
    matrix_products,
    norms,
    packed_factors,
    pairwise_products,
)
from mpgrad.ops.neural import activation, composed_activations
from mpgrad.ops.new_tensors import interchange
from mpgrad.ops.reductions import (
    counting,
    extrema,
    histograms,
    order_statistics,
    ordering,
    products,
    quantiles,
    reduction,
    running_logarithms,
)
from mpgrad.ops.shapes import memory_layouts, shape, tiles_and_pairs, windows_and_slices
from mpgrad.ops.signals import short_time_fourier
from mpgrad.recording.dispatch import overrides
from mpgrad.recording.graph.node import Node
from mpgrad.recording.graph.registry import OPERATORS, Operator
from mpgrad.recording.tensors.of_pytorch import is_of_pytorch, mixed
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.tensor_methods import (
    conversions,
    copies,
    display,
    history,
    in_place_composed,
    in_place_methods,
    layout,
    new_tensors,
    numpy_functions,
    random_in_place,
    shape_in_place,
    storages,
    values,
)

if TYPE_CHECKING:
    from mpgrad.autograd.backward import Place

Array = np.ndarray[Any, Any]

# ------------------------------------------------------------------------ Python's operators

_OPERANDS = (Tensor, int, float, complex, np.ndarray, np.generic)


def _infix(function: Callable[..., Tensor], *, reflected: bool = False) -> Callable[..., Tensor]:
    """``function`` as a special method: it returns NotImplemented for an unknown operand."""

    def method(self: Tensor, other: Any) -> Tensor:
        if not isinstance(other, _OPERANDS):
            return _unknown(function, other)
        return function(other, self) if reflected else function(self, other)

    return method


def _arithmetic(function: Callable[..., Tensor], operator: Operator) -> Callable[..., Tensor]:
    """The same for ``operator``, which two Tensors of one floating dtype need nothing but."""

    def method(self: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            dtype = self._array.dtype
            if dtype is other._array.dtype and dtype.kind == "f":
                return operator.run(self, other)  # type: ignore[no-any-return]
        elif not isinstance(other, _OPERANDS):
            return _unknown(function, other)
        return function(self, other)

    return method


def _unknown(function: Callable[..., Tensor], other: Any) -> Any:
    """Python then tries the operand's own method; PyTorch's would not name the libraries."""
    if is_of_pytorch(other):
        raise mixed(function.__name__)
    return NotImplemented


_INFIX: dict[str, Callable[..., Tensor]] = {
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "truediv": arithmetic.div,
    "floordiv": rounding.floor_divide,
    "mod": rounding.remainder,
    "pow": arithmetic.pow,
    "matmul": matrix_products.matmul,
    "and": comparison.bitwise_and,
    "or": comparison.bitwise_or,
    "xor": comparison.bitwise_xor,
    "lshift": bit_patterns.bitwise_left_shift,
    "rshift": bit_patterns.bitwise_right_shift,
}
#: Those that are one call of the operator of this name.
_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}
#: The methods behind ``+=`` and its kin.
_IN_PLACE = {
    "add": "add_",
    "sub": "sub_",
    "mul": "mul_",
    "truediv": "div_",
    "floordiv": "floor_divide_",
    "mod": "remainder_",
    "pow": "pow_",
    "and": "bitwise_and_",
    "or": "bitwise_or_",
    "xor": "bitwise_xor_",
    "lshift": "bitwise_left_shift_",
    "rshift": "bitwise_right_shift_",
}
_COMPARISONS = {
    "__eq__": comparison.eq,
    "__ne__": comparison.ne,
    "__lt__": comparison.lt,
    "__le__": comparison.le,
    "__gt__": comparison.gt,
    "__ge__": comparison.ge,
}


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
        gradient: of a result with respect to this tensor; optional for a single element.
        retain_graph: keep saved tensors for another backward (default: ``create_graph``).
        create_graph: record the backward itself, for higher derivatives.
        inputs: accumulate into these only, instead of all leaves.

    Raises:
        RuntimeError: the tensor does not require grad, or the saved tensors were freed.
    """
    if type(self) is not Tensor and overrides.is_overridden((self,)):
        overrides.call_override(
            Tensor.backward, (self,), self, gradient=gradient, retain_graph=retain_graph,
            create_graph=create_graph, inputs=inputs,
        )  # fmt: skip
        return
    try:
        _backward()(self, gradient, retain_graph, create_graph, inputs=inputs)
    except BaseException as error:
        hide_our_frames(error)
        raise


@functools.cache
def _backward() -> Callable[..., None]:
    from mpgrad.autograd.backward import backward as run  # the first backward loads it

    return run


def call_node(self: Node, *grads: Any) -> Any:
    """Run this Node alone, in this process, and return the gradients of the forward inputs.

    No hook is called, and the saved tensors of the Node are kept; the computation is recorded
    unless recording is off.

    Args:
        grads: for each forward output a Tensor or None.

    Returns:
        A Tensor or None if there is one forward input, else a tuple of them.

    Raises:
        TypeError: too many or too few gradients, or one that is not a Tensor.
        RuntimeError: the saved tensors of the Node were freed.
    """
    from mpgrad.autograd.higher_order.direct_call import call_directly

    return call_directly(self, grads)


def _load_engine() -> None:
    """Load the default engine, which installs itself in the slot."""
    from mpgrad.engine import engine  # noqa: F401


# ------------------------------------------------------------------------ other argument orders


def _where(self: Tensor, condition: Any, other: Any) -> Tensor:
    """This tensor where ``condition`` is true, ``other`` elsewhere; all three are broadcast."""
    return minimum_maximum.where(condition, self, other)


def _view_as(self: Tensor, other: Tensor) -> Tensor:
    """A view of the shape of ``other``."""
    return shape.view(self, other.shape)


def _reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """``reshape`` to the shape of ``other``."""
    return shape.reshape(self, other.shape)


def _expand_as(self: Tensor, other: Tensor) -> Tensor:
    """A view that is broadcast to the shape of ``other``."""
    return shape.expand(self, other.shape)


def _itself(self: Tensor) -> Tensor:
    """The tensor itself: there are no sparse ones."""
    return self


def _reversed(self: Tensor) -> Tensor:
    """A view whose dimensions are in reverse order."""
    return shape.permute(self, tuple(reversed(range(self.ndim))))


def _matrices_transposed(self: Tensor) -> Tensor:
    """A view whose last two dimensions have changed places.

    Raises:
        RuntimeError: there are fewer than two.
    """
    if self.ndim < 2:
        raise RuntimeError(
            "tensor.mT is only supported on matrices or batches of matrices. "
            f"Got {self.ndim}-D tensor."
        )
    return shape.transpose(self, -2, -1)


# ------------------------------------------------------------------------ attaching

#: Modules whose functions are also methods, and their functions that are not.
_FAMILIES: tuple[tuple[Any, str], ...] = (
    (aliases, "asarray chain_matmul range vander"),
    (arithmetic, ""),
    (minimum_maximum, "where"),
    (rounding, ""),
    (comparison, ""),
    (transcendental, ""),
    (reduction, ""),
    (extrema, ""),
    (products, ""),
    (norms, "normalize cosine_similarity"),
    (shape, "cat stack"),
    (indexing, ""),
    (overwriting, ""),
    (selection, ""),
    (scattering, ""),
    (scatter_reductions, ""),
    (ordering, ""),
    (complex_numbers, "complex imag polar real view_as_complex view_as_real"),
    (matrix_products, "linear tensordot"),
    (tiles_and_pairs, "atleast_1d atleast_2d atleast_3d cartesian_prod"),
    (pairwise_products, "bilinear cdist pdist"),
    (matrices, "inv multi_dot solve"),
    (counting, "bucketize isin searchsorted"),
    (piecewise, ""),
    (order_statistics, "std_mean"),
    (signs_and_remainders, "rsub"),
    (windows_and_slices, "block_diag broadcast_shapes column_stack dstack"),
    (quantiles, "cumulative_trapezoid trapezoid trapz"),
    (bit_patterns, ""),
    (running_logarithms, ""),
    (short_time_fourier, ""),
)

_METHODS: dict[str, Callable[..., Any]] = {
    "detach": history.detach,
    "detach_": history.detach_,
    "backward": backward,
    "softmax": activation.softmax,
    "bernoulli": random.bernoulli,
    "multinomial": random.multinomial,
    "prelu": composed_activations.prelu,
    "hardshrink": composed_activations.hardshrink,
    "to_dense": _itself,
    "log_softmax": activation.log_softmax,
    "where": _where,
    "view_as": _view_as,
    "reshape_as": _reshape_as,
    "expand_as": _expand_as,
    "swapaxes": shape.swapaxes,
    "swapdims": shape.transpose,
    "moveaxis": shape.movedim,
    **{
        name: getattr(linear_systems, name)
        for name in ["cholesky_inverse", "cholesky_solve", "pinverse", "triangular_solve"]
    },
    **{name: getattr(matrix_functions, name) for name in ["matrix_exp", "qr", "svd"]},
    **{
        name: getattr(special, name)
        for name in (
            *("digamma", "erfinv", "i0", "igamma", "igammac", "lgamma", "mvlgamma", "polygamma"),
            "sinc",
        )
    },
    **{name: getattr(packed_factors, name) for name in ["geqrf", "lu", "lu_solve", "ormqr"]},
    "histogram": histograms.histogram,
    "as_strided_scatter": memory_layouts.as_strided_scatter,
    "__neg__": arithmetic.neg,
    "__pos__": _itself,
    "__abs__": arithmetic.abs,
    "__invert__": comparison.inverted,
    "__getitem__": indexing.getitem,
    "__hash__": object.__hash__,
    "__repr__": display.represent,
    "_repr_html_": display.represent_html,
    "__dir__": display.attributes,
}


def _part(view: Callable[[Tensor], Tensor]) -> property:
    """``z.real`` or ``z.imag``; assigning changes ``z`` in place."""

    def assign(self: Tensor, value: Any) -> None:
        view(self)[...] = value

    return property(view, assign)


_PROPERTIES: dict[str, property] = {
    "data": property(history.get_data, history.set_data, history.delete_data),
    "T": property(_reversed),
    "mT": property(_matrices_transposed),
    **{name: _part(part) for name, part in complex_numbers.PARTS.items()},
    "H": property(complex_numbers.conjugate_transpose),
    "mH": property(complex_numbers.adjoint),
}


def _parallel_map(*args: Any, **options: Any) -> Any:
    from mpgrad.parallel.maps import parallel_map

    return parallel_map(*args, **options)


def _attach() -> None:
    for family, excluded in _FAMILIES:
        for member in set(family.__all__).difference(excluded.split()):
            setattr(Tensor, member, getattr(family, member))
    for name, function in _INFIX.items():
        setattr(Tensor, f"__{name}__", _infix(function))
        setattr(Tensor, f"__r{name}__", _infix(function, reflected=True))
    for name, operator in _ARITHMETIC.items():
        setattr(Tensor, f"__{name}__", _arithmetic(_INFIX[name], OPERATORS[operator]))
    Tensor.__rdiv__ = Tensor.__rtruediv__  # type: ignore[method-assign]  # PyTorch has both
    for name, function in _COMPARISONS.items():
        setattr(Tensor, name, _infix(function))
    for table in (
        _METHODS,
        _PROPERTIES,
        layout.METHODS,
        storages.METHODS,
        layout.PROPERTIES,
        conversions.METHODS,
        values.METHODS,
        copies.METHODS,
        numpy_functions.METHODS,
        interchange.METHODS,
        interchange.PROPERTIES,
        in_place_methods.METHODS,
        random_in_place.METHODS,
        in_place_composed.METHODS,
        new_tensors.METHODS,
        shape_in_place.METHODS,
        overrides.METHODS,
        variable.PROPERTIES,
    ):
        for name, member in table.items():
            setattr(Tensor, name, member)
    for name, method in _IN_PLACE.items():
        setattr(Tensor, f"__i{name}__", _infix(getattr(Tensor, method)))
    for name in older_forms.OLDER:
        for method in (name, f"{name}_"):
            setattr(Tensor, method, older_forms.with_older_form(name, getattr(Tensor, method)))
    Node.__call__ = call_node  # type: ignore[method-assign]
    engine_slot.load = _load_engine
    Function._parallel_map = staticmethod(_parallel_map)


_attach()
