"""CopyOnWriteVersions: the tensors over a gradient that user code reads, until one changes it.

Others refer to the gradient, too: another Node, the caller's seed, a result. So before the first
change in place the tensors move to memory of their own, all at once.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mpgrad.arrays.cpu.cpu_views import may_overlap
from mpgrad.arrays.cuda.device_arrays import address, copied, on_its_device
from mpgrad.recording.tensors.storage import VersionCounter

if TYPE_CHECKING:
    from mpgrad.recording.tensors.tensor import Tensor

_SHARED = (
    "a gradient that others have, too, is changed in place, and an array that is no Tensor, or a "
    "view that cannot be made again, lies over it. Please clone() the tensor before performing the "
    "operation."
)


class CopyOnWriteVersions(VersionCounter):
    """The counter of a lent gradient, which all tensors over it share.

    Args:
        seen: the array that user code sees, without a name of its own for it in the caller.
        original: the engine's array.

    Attributes:
        seen: None when the tensors have memory of their own.
        original: None when the loan is over.
    """

    __slots__ = ("_tensors", "original", "seen")

    def __init__(self, seen: Any, original: Any) -> None:
        super().__init__()
        self.seen, self.original = seen, original
        self._tensors: list[weakref.ref[Tensor]] = []

    def add(self, tensor: Tensor) -> None:
        """``tensor`` lies over the gradient."""
        self._tensors.append(weakref.ref(tensor))

    def become_own(self) -> None:
        """Move the tensors to memory of their own, because one of them is about to be changed.

        Raises:
            RuntimeError: it is not known how they, or others, lie over the gradient.
        """
        if self.seen is None:
            return
        tensors = [tensor for known in self._tensors if (tensor := known()) is not None]
        is_here = isinstance(self.seen, np.ndarray)
        if not self.seen.flags.c_contiguous or (is_here and not self._is_in_alone(tensors)):
            raise RuntimeError(_SHARED)
        whole = copied(self.seen)
        parts = [self._in(whole, tensor) for tensor in tensors]
        for tensor, part in zip(tensors, parts, strict=True):
            tensor._array = part
        self.seen = None

    def _in(self, whole: Any, tensor: Tensor) -> Any:
        """The part of ``whole``, a copy of the gradient, where ``tensor`` lies over that."""
        array, view = tensor._array, tensor._view
        if array is self.seen:
            return whole
        if isinstance(whole, np.ndarray):
            part = np.ndarray(
                array.shape, array.dtype, whole, address(array) - address(self.seen), array.strides
            )
            part.flags.writeable = not may_overlap(part)
            return part
        # CuPy has to know it as a view, so the view is taken again.
        if view is None or any(
            step.operator is None or not step.operator.view for step in view.chain()
        ):
            raise RuntimeError(_SHARED)
        with on_its_device(whole):
            return view.array_in(whole)

    def _is_in_alone(self, tensors: list[Tensor]) -> bool:
        """Whether all arrays over the gradient are those of ``tensors``."""
        held = {id(self.seen): self.seen}
        #: How many references to each array are known.
        known = Counter(held.keys())
        for tensor in tensors:
            known[id(tensor._array)] += 1
            held[id(tensor._array)] = tensor._array
        pending = list(held)
        while pending:
            behind = held[pending.pop()].base
            if type(behind) is not np.ndarray:  # as_strided puts an object between
                behind = getattr(behind, "base", None)
            if type(behind) is np.ndarray:
                known[id(behind)] += 1
                if id(behind) not in held:
                    held[id(behind)] = behind
                    pending.append(id(behind))
        behind = None
        return all(sys.getrefcount(held[at]) - _COUNTED == known[at] for at in held)


def _counted() -> int:
    arrays = {0: np.empty(0)}
    return sys.getrefcount(arrays[0])


#: The references of a dictionary and of ``sys.getrefcount`` itself (they differ between
#: interpreters).
_COUNTED = _counted()
