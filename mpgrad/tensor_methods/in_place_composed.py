"""In-place forms of functions that are made of several operators: the result is copied in.

What is overwritten is an input of what is copied, so that recording ``copy_`` records all of it.
No formula of these functions may ask for the overwritten values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.ops import arithmetic, comparison, linalg, reduction, scattering, selection
from mpgrad.ops.promotion import check_cast
from mpgrad.tensor import Tensor
from mpgrad.tensor_methods.in_place import copy_


def _composed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        result = function(self, *arguments, **options)
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


METHODS: dict[str, Callable[..., Any]] = {
    f"{name}_": _composed(getattr(family, name))
    for family, names in (
        (arithmetic, "addcmul addcdiv"),
        (
            comparison,
            "eq ne gt ge lt le not_equal greater greater_equal less less_equal "
            "logical_and logical_or logical_xor logical_not",
        ),
        (linalg, "addmm baddbmm"),
        (reduction, "cumsum"),
        (scattering, "index_add index_copy index_fill masked_scatter scatter scatter_add"),
        (selection, "tril triu"),
    )
    for name in names.split()
}
