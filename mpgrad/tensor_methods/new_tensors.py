"""``x.new_zeros(...)`` and so on: new tensors with the dtype and device of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.ops.new_tensors import creation
from mpgrad.ops.new_tensors.typed_tensors import from_data_or_size
from mpgrad.ops.shapes import memory_layouts
from mpgrad.recording.tensors.tensor import Tensor


def new(self: Tensor, *args: Any) -> Tensor:
    """Uninitialised for a shape (``x.new(2, 3)``, ``x.new(y.size())``), else with data."""
    return from_data_or_size(args, self.dtype, self.device)


def new_tensor(self: Tensor, data: Any, **options: Any) -> Tensor:
    """A copy of ``data``; ``options``: ``dtype``, ``device``, ``requires_grad``."""
    return creation.tensor(data, **_like(self, options))


def new_full(self: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """``fill_value`` everywhere; ``options``: ``dtype``, ``device``, ``requires_grad``."""
    return creation.full(size, fill_value, **_like(self, options))


def _of_size(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *size: Any, **options: Any) -> Tensor:
        return make(*size, **_like(self, options))

    method.__doc__ = f"{make.__doc__} ``options``: ``dtype``, ``device``, ``requires_grad``."
    return method


def _like(tensor: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return {"dtype": tensor.dtype, "device": tensor.device, **given}


def new_empty_strided(self: Tensor, size: Any, stride: Any, **options: Any) -> Tensor:
    """Uninitialised; neighbours along each dimension are ``stride`` elements apart in memory."""
    return memory_layouts.empty_strided(size, stride, **_like(self, options))


METHODS: dict[str, Callable[..., Any]] = {
    "new": new,
    "new_tensor": new_tensor,
    "new_full": new_full,
    "new_empty_strided": new_empty_strided,
    "new_empty": _of_size(creation.empty),
    "new_zeros": _of_size(creation.zeros),
    "new_ones": _of_size(creation.ones),
}
