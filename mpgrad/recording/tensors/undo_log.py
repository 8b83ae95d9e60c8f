"""UndoLog: restores every ``.grad`` if an outer backward fails.

A backward inside a hook adds to ``.grad`` when it ends, as in PyTorch, and a leaf with
post-accumulate hooks gets its gradient before the others. Both happen while the outermost backward
may still fail, and then no change may remain. (Additions of other threads to the same ``.grad`` in
between are undone, too.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cuda.device_arrays import copied, on_host, on_its_device

if TYPE_CHECKING:
    from mpgrad.recording.tensors.tensor import Tensor


class UndoLog:
    """The earlier value of each changed ``.grad``, in the order of the changes."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        #: Tensor, its earlier ``.grad``, and a copy of its values (None if there was none).
        self._entries: list[tuple[Tensor, Tensor | None, np.ndarray[Any, Any] | None]] = []

    def note(self, tensor: Tensor) -> None:
        """``tensor.grad`` is about to be replaced, or changed in place."""
        grad = tensor._grad
        self._entries.append((tensor, grad, None if grad is None else copied(grad._array)))

    def extend(self, later: UndoLog) -> None:
        """Take over the entries of a backward that has ended inside this one."""
        self._entries += later._entries

    def undo(self) -> None:
        """Restore all values, the last change first."""
        while self._entries:
            tensor, grad, values = self._entries.pop()
            if (
                grad is not None
                and values is not None
                and on_host(grad._array).tobytes() != on_host(values).tobytes()
            ):
                with on_its_device(values):
                    np.copyto(grad._array, values)
                grad._version_counter.count()
            tensor._grad = grad
