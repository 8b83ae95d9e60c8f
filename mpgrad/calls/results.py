"""How a result travels back: numbers stand for its tensors, its arrays lie beside it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.travel import ByValue, ResolvingUnpickler

Array: TypeAlias = np.ndarray[Any, Any]

#: A longer pickle of a result does not travel inside a message.
RESULT_BYTES_MAX = 1 << 16


class ResultPickler(ByValue):
    """Pickles the result of a call; each tensor becomes ``number_of(tensor)``."""

    def __init__(
        self,
        stream: io.BytesIO,
        number_of: Callable[[Any], Any],
        buffers: list[Array],
        library: ArrayLibrary,
    ) -> None:
        # A method of its own would be a cycle, which would keep all results for a while.
        super().__init__(stream, protocol=5, buffer_callback=partial(_keep_buffer, buffers))
        self._number_of, self.library = number_of, library
        #: The numbers of the tensors whose state has been told.
        self._told: set[int] = set()

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, self.library.tensor_class):
            return None
        self.library.require_fit(obj)
        number = self._number_of(obj)
        if number < 0 or number in self._told or obj.grad_fn is not None:
            return number
        self._told.add(number)
        state = self.library.state_of(obj)
        # A leaf that the call has made: a parameter of a model that it has trained.
        return number if state is None else (number, state)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and not obj.flags.writeable:
            return obj.copy(order="K").__reduce_ex__(5)  # an argument, or a part of one
        return super().reducer_override(obj)


def _keep_buffer(buffers: list[Array], buffer: pickle.PickleBuffer) -> bool:
    try:
        buffers.append(np.frombuffer(buffer.raw(), np.uint8))
    except BufferError:
        return True
    return False


def dump_result(
    value: Any, number_of: Callable[[Any], Any], library: ArrayLibrary
) -> tuple[bytes, list[Array]]:
    """The pickle of a result with numbers in place of its tensors, and the arrays beside it. If it
    is long it is the last of these.

    Raises:
        Exception: what the pickling of an object raises.
    """
    stream = io.BytesIO()
    buffers: list[Array] = []
    ResultPickler(stream, number_of, buffers, library).dump(value)
    data = stream.getvalue()
    if len(data) <= RESULT_BYTES_MAX:
        return data, buffers
    return b"", [*buffers, np.frombuffer(data, np.uint8)]


def can_return(value: Any, library: ArrayLibrary) -> bool:
    """Whether ``value`` can be pickled as a result."""
    try:
        dump_result(value, id, library)
    except Exception:
        return False
    return True


def load_result(
    data: bytes, buffers: Sequence[Array], tensor_of: Callable[[int], Any], library: ArrayLibrary
) -> Any:
    """The result with ``tensor_of(number)`` for each tensor."""

    def resolve(found: Any) -> Any:
        if isinstance(found, int):
            return tensor_of(found)
        number, state = found
        return library.with_state(tensor_of(number), state)

    pickled: Any = data or buffers[-1].data
    unpickler = ResolvingUnpickler(io.BytesIO(pickled), buffers=buffers)
    unpickler.resolve = resolve
    return unpickler.load()
