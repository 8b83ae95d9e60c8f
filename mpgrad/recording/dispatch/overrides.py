"""``__torch_function__``: a subclass of Tensor may take over ``backward()`` and ``grad()``.

The protocol is PyTorch's, for these functions only: operators do not ask subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpgrad.base.thread_state import PerThread
from mpgrad.recording.tensors.of_pytorch import mixed
from mpgrad.recording.tensors.tensor import Tensor


class _Disabled(PerThread):
    disabled = False


_state = _Disabled()


def default_torch_function(
    cls: type[Tensor],
    func: Callable[..., Any],
    types: Sequence[type[Any]],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Run ``func`` without overrides; the default of ``super().__torch_function__``.

    PyTorch calls it, too, for a function of its own that is given a Tensor.

    Raises:
        TypeError: it is one of PyTorch, and no other class could take the Tensor.
    """
    module = getattr(func, "__module__", None) or "torch"
    if module.partition(".")[0] == "torch" and all(issubclass(kind, Tensor) for kind in types):
        raise mixed(f"torch's {getattr(func, '__name__', func)}()")
    if not (getattr(func, "__module__", None) or "").startswith("mpgrad.") or not all(
        issubclass(cls, kind) for kind in types
    ):
        return NotImplemented
    before, _state.disabled = _state.disabled, True
    try:
        return func(*args, **(kwargs or {}))
    finally:
        _state.disabled = before


def is_overridden(values: Iterable[Any]) -> bool:
    """Whether a subclass among ``values`` overrides functions."""
    # Nearly always all of them are plain Tensors: one comparison each.
    kinds = [type(value) for value in values if type(value) is not Tensor]
    return bool(kinds) and any(map(_overrides, kinds)) and not _state.disabled


def _overrides(kind: type[Any]) -> bool:
    if not issubclass(kind, Tensor):
        return False
    method = kind.__torch_function__
    return getattr(method, "__func__", method) is not default_torch_function


def call_override(
    function: Callable[..., Any], values: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """The result of the first subclass that implements ``function``; derived classes come first.

    Raises:
        TypeError: all of them return NotImplemented.
    """
    kinds: list[type[Any]] = []
    for kind in dict.fromkeys(type(value) for value in values if _overrides(type(value))):
        before = next((at for at, other in enumerate(kinds) if issubclass(kind, other)), len(kinds))
        kinds.insert(before, kind)
    for kind in kinds:
        result = kind.__torch_function__(function, tuple(kinds), args, kwargs)
        if result is not NotImplemented:
            return result
    names = ", ".join(kind.__name__ for kind in kinds)
    raise TypeError(
        f"no implementation found for '{function.__module__}.{function.__qualname__}' on types "
        f"that implement __torch_function__: [{names}]"
    )


METHODS = {"__torch_function__": classmethod(default_torch_function)}
