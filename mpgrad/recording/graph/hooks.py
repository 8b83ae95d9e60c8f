"""Hook containers and the handles that remove hooks; knows neither Nodes nor Tensors."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_next_id = itertools.count()


class Hooks:
    """Callables in registration order; each can be removed while others are being called."""

    __slots__ = ("__weakref__", "_by_id")

    def __init__(self) -> None:
        self._by_id: dict[int, Callable[..., Any]] = {}

    def add(self, hook: Callable[..., Any], *, first: bool = False) -> RemovableHandle:
        """Register ``hook`` after the others or before; the returned handle removes it."""
        key = next(_next_id)
        if first:
            self._by_id = {key: hook, **self._by_id}
        else:
            self._by_id[key] = hook
        return RemovableHandle(self, key)

    def discard(self, key: int) -> None:
        self._by_id.pop(key, None)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)


class NodeHooks:
    """All hooks of the user on one Node; most Nodes have none."""

    __slots__ = ("post", "pre", "retained", "tensor")

    def __init__(self) -> None:
        #: Hooks on the gradient of each forward output, keyed by input number, in the order in
        #: which the outputs got their first hook.
        self.tensor: dict[int, Hooks] = {}
        #: Tensors (weakly) whose ``.grad`` is kept on request, by input number.
        self.retained: dict[int, weakref.ref[Any]] = {}
        self.pre = Hooks()
        self.post = Hooks()

    @property
    def calls_user(self) -> bool:
        """Whether there is any hook (``retain_grad`` calls no user code)."""
        return bool(self.pre or self.post) or any(self.tensor.values())


class RemovableHandle:
    """The result of registering a hook; ``remove()`` or leaving its ``with`` block unregisters it.

    It can be copied and pickled (with the hooks, which must then be picklable).
    """

    def __init__(self, hooks: Hooks, key: int) -> None:
        self._hooks = weakref.ref(hooks)
        self.id = key

    def __getstate__(self) -> tuple[Hooks | None, int]:
        return self._hooks(), self.id

    def __setstate__(self, state: tuple[Hooks | None, int]) -> None:
        hooks, self.id = state
        # Without hooks, it refers to hooks that no longer exist.
        self._hooks = weakref.ref(Hooks() if hooks is None else hooks)

    def remove(self) -> None:
        """Unregister the hook; doing so twice is safe."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.discard(self.id)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class MultiHandle(RemovableHandle):
    """The handle of a hook that was registered in several places."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = tuple(handles)
        self.id = next(_next_id)

    def remove(self) -> None:
        """Unregister the hook everywhere; doing so twice is safe."""
        for handle in self.handles:
            handle.remove()

    def __getstate__(self) -> Any:
        return self.handles, self.id

    def __setstate__(self, state: Any) -> None:
        self.handles, self.id = state
