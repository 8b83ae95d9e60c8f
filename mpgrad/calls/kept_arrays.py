"""kept_arrays(): the inputs of a branch as they were at the call.

Those that it has not saved may change between the passes, as in PyTorch. So small ones are kept as
copies; of a large one its memory is kept, which is as good as long as it has not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.calls.call import Ran
from mpgrad.recording.tensors.storage import VersionCounter
from mpgrad.recording.tensors.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

#: The inputs of a call that are copied have at most these bytes together.
COPIED_BYTES_MAX = 256 << 10


class Watched:
    """An array that may change; ``get`` gives it as long as it has not."""

    __slots__ = ("_array", "_counter", "_version")

    def __init__(self, array: Array, counter: VersionCounter) -> None:
        self._array, self._counter, self._version = array, counter, counter.value

    def get(self) -> Array | None:
        """The array; None if it has changed."""
        return self._array if self._counter.value == self._version else None

    def __reduce__(self) -> Any:
        return _same, (self.get(),)


def _same(array: Array | None) -> Array | None:
    return array


def kept_arrays(ran: Ran, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    """The arrays of a call that may be made again, each as itself, a copy, or Watched.

    A tensor may get other memory (``p.data = q``): what it had at the call counts.
    """
    kept: list[Any] = []
    room = COPIED_BYTES_MAX
    for number, (one, array, kind) in enumerate(
        zip(inputs, ran.arrays, ran.call.inputs, strict=True)
    ):
        if kind.is_buffer or number in ran.saved:
            # A copy already; or what has not changed, since otherwise the backward raises.
            kept.append(array)
        elif array.nbytes <= room:
            room -= array.nbytes
            kept.append(array.copy(order="K"))
        else:
            kept.append(Watched(array, one._version_counter))
    return tuple(kept)
