"""PrivateArrays: what one run of a Function reads in memory that is this worker's own.

NumPy does not write these arrays, but compiled code does not ask. A change there would reach
neither the calling process nor the other workers, as it would in ``local``: so it is found after
the run, and the result is not used. Arrays in the arenas cannot be written here (``WorkerMemory``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.calls.custom_functions.contents import KeptContent, fingerprint, what_changed
from mpgrad.calls.custom_functions.loading import Loaded
from mpgrad.recording.tensors.storage import is_held_alone
from mpgrad.wire.programs import InlineArray, PackedArray
from mpgrad.workers.worker_memory import WorkerMemory, open_inline

Array: TypeAlias = np.ndarray[Any, Any]


class PrivateArrays:
    """The arrays of one run, and what was in them before.

    Args:
        memory: opens them.
        loaded: the code, with what it reads.

    Attributes:
        compared: values of ctx that are compared, by their names.
        on_ctx: the arrays and sparse matrices on ctx that lie in memory of their own.
    """

    __slots__ = ("_gradients", "_inline", "_kept", "_loaded", "_memory", "compared", "on_ctx")

    def __init__(self, memory: WorkerMemory, loaded: Loaded) -> None:
        self._memory, self._loaded = memory, loaded
        self.on_ctx: list[KeptContent] = []
        self.compared: dict[str, Any] = {}
        self._kept = b""
        self._inline: list[tuple[str, bytearray, bytes]] = []
        self._gradients: list[tuple[Array, bytes]] = []

    def open(self, packed: PackedArray, what: str) -> Array:
        """A read-only array over a saved array, which is ``what`` in words."""
        if not isinstance(packed, InlineArray):
            return self._memory.open_packed(packed)
        own = bytearray(packed.data)
        self._inline.append((what, own, packed.data))
        return open_inline(packed, memoryview(own).toreadonly())

    def note_gradients(self, grads: list[Any]) -> None:
        """Keep what is in the large gradients that something else in this process holds, too, and
        that it can write. Small ones are copied for the Function (``lend``)."""
        for nr in range(len(grads)):
            # Taken out of the list, so that this is the only reference if nobody else has one.
            array, grads[nr] = grads[nr], None
            if (
                type(array) is np.ndarray
                and array.nbytes > INLINE_LIMIT_BYTES
                and not is_held_alone(array)
                and not self._memory.is_protected(array)
            ):
                self._gradients.append((array, array.tobytes()))
            grads[nr] = array

    def note_values(self, values: dict[str, Any]) -> None:
        """Compare these values of ctx after the run, too."""
        self.compared, self._kept = values, fingerprint([*values.values()], self.on_ctx)

    def what_changed(self) -> str:
        """One array that has changed, in words; empty if none has."""
        for what, own, before in self._inline:
            if own != before:
                return what
        is_promised = self._loaded.function.run_on is not None
        changed = what_changed(self._loaded.contents if is_promised else self.on_ctx)
        if not changed and not is_promised:
            changed = self._loaded.what_changed()
        if changed:
            return changed
        if self.compared and fingerprint([*self.compared.values()], self.on_ctx) != self._kept:
            return " or ".join(f"`ctx.{name}`" for name in self.compared)
        for array, kept in self._gradients:
            if array.tobytes() != kept:
                return "a gradient"
        return ""
