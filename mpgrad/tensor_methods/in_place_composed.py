"""In-place forms of functions that consist of several operators: the result is copied in.

The overwritten tensor is an input of the copied result, so recording ``copy_`` records everything.
If a formula may use the overwritten values, the function gets a copy of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.ops.by_index import scatter_reductions, scattering, selection
from mpgrad.ops.calling.promotion import check_cast
from mpgrad.ops.elementwise import (
    arithmetic,
    bit_patterns,
    comparison,
    complex_numbers,
    piecewise,
    signs_and_remainders,
    special,
    transcendental,
)
from mpgrad.ops.linear_algebra import matrix_products, norms
from mpgrad.ops.reductions import products, reduction
from mpgrad.ops.shapes import windows_and_slices
from mpgrad.ops.shapes.shape import clone
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.tensor_methods.in_place_methods import copy_


def _composed(
    function: Callable[..., Tensor], *, keeps_values: bool = False
) -> Callable[..., Tensor]:
    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        copied = keeps_values and self.requires_grad and is_grad_enabled()
        result = function(clone(self) if copied else self, *arguments, **options)
        check_cast(result.dtype, self)
        if result.shape != self.shape:
            raise RuntimeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast shape "
                f"{list(result.shape)}"
            )
        return copy_(self, result)

    method.__name__ = f"{function.__name__}_"
    method.__doc__ = f"``{function.__name__}`` in place; recorded like it."
    return method


_FORMS = (
    (arithmetic, "addcmul addcdiv"),
    (matrix_products, "addmm baddbmm"),
    (windows_and_slices, "put"),
    (reduction, "cumsum"),
    (scatter_reductions, "index_reduce scatter_reduce"),
    (scattering, "index_add index_copy index_fill masked_scatter scatter scatter_add"),
    (selection, "tril triu"),
    (signs_and_remainders, "addbmm addmv addr"),
)
#: Functions whose formulas use values; and comparisons, which give the old values no gradient.
_FORMS_OF_VALUES = (
    (arithmetic, "true_divide"),
    (bit_patterns, "bitwise_left_shift bitwise_right_shift nextafter"),
    (norms, "renorm"),
    (comparison, "eq ne gt ge lt le logical_and logical_not logical_or logical_xor"),
    (comparison, "not_equal greater greater_equal less less_equal"),
    (piecewise, "deg2rad erfc float_power frac hypot logit nan_to_num rad2deg"),
    (products, "cumprod"),
    (signs_and_remainders, "copysign fmod gcd heaviside lcm ldexp"),
    (transcendental, "xlogy"),
    (special, "digamma erfinv i0 igamma igammac lgamma mvlgamma polygamma sinc"),
)

METHODS: dict[str, Callable[..., Any]] = {
    f"{name}_": _composed(getattr(family, name), keeps_values=forms is _FORMS_OF_VALUES)
    for forms in (_FORMS, _FORMS_OF_VALUES)
    for family, names in forms
    for name in names.split()
}
METHODS["conj_physical_"] = _composed(complex_numbers.conj)
