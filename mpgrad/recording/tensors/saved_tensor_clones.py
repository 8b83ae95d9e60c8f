"""allow_mutation_on_saved_tensors(): clones saved tensors just before they are overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias
from weakref import WeakSet, WeakValueDictionary

from mpgrad.arrays.cuda.device_arrays import address, copied
from mpgrad.base.context_manager import contextmanager
from mpgrad.recording.tensors.hooks_in_force import HOOKS, HookPair
from mpgrad.recording.tensors.storage import VersionCounter
from mpgrad.recording.tensors.tensor import Tensor

#: Memory, layout and version of a saved tensor: equal ones need only one clone.
_Key: TypeAlias = tuple[Any, ...]


class _SavedMemory:
    """A saved tensor: its own memory or a clone of it."""

    __slots__ = ("__weakref__", "counter", "is_cloned", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        # Without its history: otherwise an output would keep the Node that saved it.
        self.tensor = Tensor(tensor._array, version_counter=tensor._version_counter)
        self.counter: VersionCounter = tensor._version_counter
        self.is_cloned = False


class SavedTensorClones:
    """The saved tensors and clones of one :func:`allow_mutation_on_saved_tensors`."""

    def __init__(self) -> None:
        self._kept: WeakValueDictionary[_Key, _SavedMemory] = WeakValueDictionary()
        #: By the identity of the version counter, which all views of one memory share.
        self._by_memory: dict[int, WeakSet[_SavedMemory]] = {}

    @property
    def cloned(self) -> dict[int, Tensor]:
        """The clones that are still needed, by the identity of the saved memory."""
        return {id(kept): kept.tensor for kept in list(self._kept.values()) if kept.is_cloned}

    @property
    def tid_to_weakhandle(self) -> dict[_Key, _SavedMemory]:
        """All that is saved and still needed, cloned or not (the name is PyTorch's)."""
        return dict(self._kept)

    def pack(self, tensor: Tensor) -> _SavedMemory:
        array, counter = tensor._array, tensor._version_counter
        start = address(array)
        key = (start, array.shape, array.strides, array.dtype, id(counter), counter.value)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _SavedMemory(tensor)
            self._by_memory.setdefault(id(counter), WeakSet()).add(kept)
        return kept

    def unpack(self, kept: _SavedMemory) -> Tensor:
        if active is not self:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in "
                "which the graph was originally recorded."
            )
        return kept.tensor

    def forget(self) -> None:
        """From now on nothing can be unpacked."""
        self._kept.clear()
        self._by_memory.clear()

    def before_write(self, tensor: Tensor) -> None:
        """The memory of ``tensor`` is about to change: clone the tensors saved in it."""
        for kept in self._by_memory.get(id(tensor._version_counter), ()):
            if kept.counter is tensor._version_counter and not kept.is_cloned:
                kept.tensor, kept.is_cloned = Tensor(copied(kept.tensor._array)), True


#: Called before every change of a tensor; None outside of the context.
active: SavedTensorClones | None = None


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[SavedTensorClones]:
    """Inside, a tensor that is saved for backward may be changed in place.

    Its old values are cloned just before the change, so that backward still has them. Forward and
    backward must both be inside. Nodes that save tensors here run in the calling process.

    Raises:
        RuntimeError: contexts are nested.
        AssertionError: (in backward) the context was left before.
    """
    global active
    if active is not None:
        raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
    clones = SavedTensorClones()
    HOOKS.push(HookPair(clones.pack, clones.unpack))
    active = clones
    try:
        yield clones
    finally:
        active = None
        clones.forget()
        HOOKS.pop()
