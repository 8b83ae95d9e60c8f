"""HostTask: what travels to a host: calls, and the arrays that the host does not have yet.

Arrays travel by content. So parameters go to a host once, however often their tensors are packed,
and a write that no version counts is seen.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mpgrad.base.handles import INLINE_LIMIT_BYTES, TensorHandle
from mpgrad.calls.call import Derivative
from mpgrad.calls.packing import derivative_rule_of, rule_of
from mpgrad.engine.calls_in_workers import Request
from mpgrad.engine.cluster.host_contract import Cluster
from mpgrad.engine.packed_arrays import spanned
from mpgrad.shm.arena import client_arena
from mpgrad.wire.captured_state import CapturedState
from mpgrad.wire.programs import (
    CallRule,
    DerivativeRule,
    InlineArray,
    PackedArray,
    SharedArray,
)

Array: TypeAlias = np.ndarray[Any, Any]

#: An array with more bytes is stored once for all hosts, which fetch it from there.
STORED_ABOVE_BYTES = 64 << 10
#: The bytes of those that are kept there for hosts which may ask for them later.
STORED_BYTES_MAX = 256 << 20
#: What a host keeps of arrays that came once and may come again.
KNOWN_BYTES_MAX = 1 << 30


class UsedArray(msgspec.Struct, frozen=True, array_like=True):
    """An array that a task uses.

    Attributes:
        digest: of its content and layout.
        place: of its bytes in the task; -1: the host has them.
        layout: without the bytes.
    """

    digest: bytes
    place: int
    layout: InlineArray


class SentCall(msgspec.Struct, frozen=True, array_like=True):
    """A Request, and what goes with it.

    Attributes:
        number: of this attempt.
        rule: the call; with ``of`` only what is new is in it.
        of: the branch to differentiate, whose call the host knows; -1: it does not.
        room, near: see ``Request``.
        captured_state, numpy_errors, depth: see ``Submission``.
    """

    number: int
    rule: CallRule | DerivativeRule
    of: int
    room: int
    near: int
    captured_state: bytes
    numpy_errors: dict[str, str]
    depth: int


class HostTask(msgspec.Struct, frozen=True, array_like=True):
    """Calls for a host; the numbers of branches, and arrays, that it need not keep any longer.

    Tasks may overtake one another. So a host forgets no array that came with a later number.
    """

    number: int
    calls: tuple[SentCall, ...]
    arrays: tuple[UsedArray, ...]
    released: tuple[int, ...]
    forgotten: tuple[bytes, ...]


class HostArrays:
    """The arrays that a host has, or will have."""

    def __init__(self) -> None:
        #: Their bytes; the last used ones are at the end.
        self._nbytes: OrderedDict[bytes, int] = OrderedDict()
        self._arrived: set[bytes] = set()
        #: The tasks under way that use each.
        self._uses: Counter[bytes] = Counter()

    def use(self, digest: bytes, nbytes: int) -> bool:
        """A task uses an array; whether it has arrived with another one."""
        self._nbytes[digest] = nbytes
        self._nbytes.move_to_end(digest)
        self._uses[digest] += 1
        return digest in self._arrived

    def end(self, digests: Iterable[bytes], *, has_run: bool = True) -> None:
        """A task that used these has ended."""
        self._uses.subtract(digests)
        if has_run:
            self._arrived.update(digests)

    def forget(self) -> list[bytes]:
        """Those that are too many."""
        found, total = [], sum(self._nbytes.values())
        for digest in [*self._nbytes] if total > KNOWN_BYTES_MAX else ():
            if total > KNOWN_BYTES_MAX and not self._uses[digest]:
                total -= self._nbytes.pop(digest)
                self._arrived.discard(digest)
                del self._uses[digest]
                found.append(digest)
        return found


class StoredArrays:
    """The bytes of large arrays, where every host can fetch them.

    Args:
        cluster: keeps them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: By digest: a reference, and their number; the last used ones are at the end.
        self._references: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()

    def reference(self, digest: bytes, data: Array) -> Any:
        """A reference to ``data``, for a task that is sent now."""
        known = self._references
        if digest not in known:
            known[digest] = self._cluster.store(data), data.nbytes
        known.move_to_end(digest)
        found = known[digest][0]
        while sum([nbytes for _, nbytes in known.values()]) > STORED_BYTES_MAX:
            known.popitem(last=False)
        return found


class TaskPacker:
    """Makes a HostTask.

    Args:
        arrays: of the host.
        stored_arrays: those that every host can fetch.

    Attributes:
        digests: of arrays that do not change meanwhile, by ``id``.
        data: the bytes of small arrays.
        stored: references to those of large ones; they come after the others.
        used: the arrays by their digests.
        nbytes: of the arrays that go along.
    """

    def __init__(
        self,
        arrays: HostArrays,
        stored_arrays: StoredArrays,
    ) -> None:
        self._arrays, self._stored_arrays = arrays, stored_arrays
        self.digests: dict[int, tuple[bytes, Array]] = {}
        self.used: dict[bytes, tuple[int, int | None, InlineArray]] = {}
        self._calls: list[SentCall] = []
        self.data: list[Array] = []
        self.stored: list[Any] = []
        self.nbytes = 0

    def add(
        self,
        number: int,
        request: Request,
        near: int,
        captured: CapturedState,
        depth: int,
        *,
        knows: bool,
    ) -> None:
        """Put a call in.

        Args:
            number: of the attempt.
            request, captured, depth: see there.
            near: the slot there that has its branch, or -1.
            knows: whether the host knows the call that is to be differentiated.
        """
        call, inputs, of = request.call, request.inputs, -1
        rule: CallRule | DerivativeRule
        if isinstance(call, Derivative):
            if knows:
                of, count = call.call.number, len(call.call.inputs)
                bare = call.call._replace(code=_NOTHING, code_buffers=(), items=(), inputs=())
                call, inputs = call._replace(call=bare), inputs[count:]
            rule = derivative_rule_of(call, inputs, self.array)
        else:
            rule = rule_of(call, inputs, self.array, runs_now=True)
        room, errors = request.result_nbytes, captured.numpy_errors
        self._calls.append(SentCall(number, rule, of, room, near, captured.data, errors, depth))

    def array(self, array: Array) -> PackedArray:
        """A reference to ``array``."""
        if array.nbytes <= INLINE_LIMIT_BYTES:
            data, offset = spanned(array)
            layout = array.shape, array.strides, array.dtype.str
            return InlineArray(*layout, offset, data.tobytes())
        found = self.digests.get(id(array))
        if found is None:
            found = self.digests[id(array)] = _digest(array), array
        digest = found[0]
        if digest not in self.used:
            self.used[digest] = self._use(digest, array)
        return SharedArray(TensorHandle(-1, 0, self.used[digest][0], 0, (), (), ""))

    def _use(self, digest: bytes, array: Array) -> tuple[int, int | None, InlineArray]:
        data, offset = spanned(array)
        layout = InlineArray(array.shape, array.strides, array.dtype.str, offset, b"")
        place: int | None = None
        if self._arrays.use(digest, data.nbytes):
            return len(self.used), -1, layout
        self.nbytes += data.nbytes
        if data.nbytes > STORED_ABOVE_BYTES:
            self.stored.append(self._stored_arrays.reference(digest, data))
        else:
            place = len(self.data)
            self.data.append(data)
        return len(self.used), place, layout

    def task(self, number: int, released: Sequence[int]) -> bytes:
        """The HostTask, encoded."""
        used, stored = [], len(self.data)
        for digest, (_, place, layout) in self.used.items():
            if place is None:
                place, stored = stored, stored + 1
            used.append(UsedArray(digest, place, layout))
        forgotten = self._arrays.forget()
        return msgspec.msgpack.encode(
            HostTask(number, tuple(self._calls), tuple(used), tuple(released), tuple(forgotten))
        )


_NOTHING = np.empty(0, np.uint8)


def _digest(array: Array) -> bytes:
    data, offset = spanned(array)
    found = hashlib.sha256(repr((array.shape, array.strides, array.dtype.str, offset)).encode())
    found.update(data.data)
    return found.digest()


def in_arena(layout: InlineArray, data: Array) -> Array:
    """The array in this process's arena, where its workers can read it."""
    block = client_arena().empty((max(data.nbytes, 1),), np.uint8)
    block[: data.nbytes] = data
    return np.ndarray(layout.shape, layout.dtype, block.data, layout.offset, layout.strides)
