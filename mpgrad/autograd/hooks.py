"""Hook containers and the handle that removes a hook; knows neither Nodes nor Tensors."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_next_id = itertools.count()


class Hooks:
    """Callables in registration order; each can be removed while others are being called."""

    __slots__ = ("__weakref__", "_by_id")

    def __init__(self) -> None:
        self._by_id: dict[int, Callable[..., Any]] = {}

    def add(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Register ``hook``; the handle that comes back removes it."""
        key = next(_next_id)
        self._by_id[key] = hook
        return RemovableHandle(self, key)

    def discard(self, key: int) -> None:
        self._by_id.pop(key, None)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)


class RemovableHandle:
    """Returned by ``register_hook``; ``remove()`` (or leaving its ``with`` block) unregisters."""

    def __init__(self, hooks: Hooks, key: int) -> None:
        self._hooks = weakref.ref(hooks)
        self.id = key

    def remove(self) -> None:
        """Unregister the hook; doing so twice is safe."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.discard(self.id)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
