"""In-place forms of views: ``unsqueeze_``, ``squeeze_``, ``t_``, ``transpose_`` and their like.

The tensor becomes a view of what it was, which nobody else can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.autograd.grad_mode import is_grad_enabled
from mpgrad.autograd.views.in_place import check_recordable, refuse_inference_tensor
from mpgrad.autograd.views.view import set_history
from mpgrad.ops import shape
from mpgrad.tensor import Tensor


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        refuse_inference_tensor(self)
        if is_grad_enabled() and self.requires_grad:
            check_recordable(self)
        before = Tensor(
            self._array,
            requires_grad=self._requires_grad,
            grad_fn=self.grad_fn,
            output_nr=self._output_nr,
            version_counter=self._version_counter,
        )
        before._view = self._view
        after = function(before, *arguments, **options)
        self._version_counter.count()
        self._array, self._view = after._array, after._view
        if self._view is not None:
            self._view.creation = None if before._view is None else before._view.creation
            self._view.version = self._version_counter.value
        if after._grad_fn is not None:
            set_history(self, after._grad_fn, after._output_nr)
        return self

    method.__name__ = f"{function.__name__}_"
    method.__doc__ = f"``{function.__name__}`` in place; recorded like it."
    return method


METHODS: dict[str, Callable[..., Any]] = {
    f"{name}_": _in_place(getattr(shape, name))
    for name in ("squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
}
