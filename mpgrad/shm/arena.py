"""Arena: shared memory in which this process allots blocks for arrays."""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from mpgrad.base import config, machine
from mpgrad.base.handles import CLIENT_ARENA, Block
from mpgrad.base.refused_calls import SHORTAGES, is_from_kernel
from mpgrad.errors import InvariantViolated
from mpgrad.shm.backing import Backing
from mpgrad.shm.free_list import HEADER_BYTES, FreeList, FreeListStatistics
from mpgrad.shm.mapped_arena import MAGIC, Array, Lease, MappedArena, pack_header
from mpgrad.shm.segment import Segment

P = ParamSpec("P")
T = TypeVar("T")

#: Address space of an arena. A sparse mapping costs nothing, so it may be far larger than the
#: blocks alive at once: every size class keeps its own blocks.
SMALLEST_CAPACITY_BYTES = 1 << 40
LARGEST_CAPACITY_BYTES = 1 << 44

#: The part of the memory that an arena may take by default; the rest is for other uses.
DEFAULT_SHARE = 0.8


def default_limit_bytes() -> int:
    """``MPGRAD_SHM_LIMIT`` if it is set, else 0.8 of the memory that this process may use.

    Raises:
        ValueError: ``MPGRAD_SHM_LIMIT`` is not a size.
    """
    setting = config.shm_limit()
    if setting is not None:
        return setting
    return int(machine.memory_total() * DEFAULT_SHARE)


class _Reentered(InvariantViolated):
    """An arena was entered by a finaliser or signal handler that interrupted its own thread."""


class Arena(MappedArena):
    """An arena whose blocks this process allots. Thread-safe.

    Args:
        limit_bytes: of live blocks; None takes ``default_limit_bytes()``.
        name: for error messages and ``/proc/PID/maps``.
        number: the arena number in its handles.
        capacity_bytes: of address space; None takes far more than the limit.
    """

    def __init__(
        self,
        limit_bytes: int | None = None,
        name: str = "arena",
        *,
        number: int = CLIENT_ARENA,
        capacity_bytes: int | None = None,
    ) -> None:
        limit = default_limit_bytes() if limit_bytes is None else limit_bytes
        super().__init__(_create_segment(limit, capacity_bytes, name), number)
        self._free_list = FreeList.within(self.segment.nbytes, limit, name, mmap.PAGESIZE)
        #: Whether this process may map less than the limit of live blocks.
        self.is_cramped = capacity_bytes is None and self.segment.nbytes < limit
        self._backing = Backing(self.segment, self._free_list)
        # Re-entrant, so that a thread that enters twice gets an error instead of a deadlock.
        self._lock = threading.RLock()
        self._busy = False

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """An uninitialised writable array, C-contiguous, 64-byte aligned.

        Its block is free again when the last view of it dies.

        Args:
            shape: in elements.
            dtype: of the elements.

        Raises:
            SharedMemoryExhausted: the limit is reached, or the machine has no memory left.
            TypeError: the dtype holds Python objects.
            ValueError: a dimension is negative.
        """
        # All that could fail is checked first: a block without a view would be lost.
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise TypeError(f"can't put arrays of {dtype} into shared memory: it holds objects")
        if shape and min(shape) < 0:
            raise ValueError(f"negative dimensions are not allowed: {tuple(shape)}")
        try:
            nbytes = math.prod(shape) * dtype.itemsize
            offset, generation = self._take(nbytes)
        except _Reentered:
            # A finaliser or signal handler makes an array while this thread is allotting one. It
            # gets one on the heap, which is copied when it is submitted.
            return np.empty(shape, dtype)
        token = offset, generation
        lease = Lease(self.segment, offset, offset + nbytes, token, self.released, True)
        return np.ndarray(shape, dtype, np.asarray(lease))

    def allocate(self, nbytes: int) -> Block:
        """A block of ``nbytes`` with its header written; ``free`` gives it back.

        Raises:
            SharedMemoryExhausted: the limit is reached, or the machine has no memory left.
        """
        offset, generation = self._take(nbytes)
        return Block(self.number, offset, nbytes, generation)

    def _take(self, nbytes: int) -> tuple[int, int]:
        """The offset and generation of a new block, with its header written."""
        segment = self.segment
        if segment.is_private:
            raise InvariantViolated(
                f"arena {segment.name} belongs to the process that this one was forked from"
            )
        offset, generation = self._exclusively(self._backing.allocate, nbytes)
        # The tables name no block outside of the segment.
        pack_header(segment.buffer, offset - HEADER_BYTES, MAGIC, 0, generation, nbytes, 0)
        return offset, generation

    def free(self, block: Block) -> None:
        """Free a block of ``allocate`` that has no views in use any more.

        Raises:
            InvariantViolated: it is not allocated.
        """
        self._exclusively(self._release, block.offset)

    def trim(self, idle_limit: int | None = None) -> int:
        """Return the pages of idle blocks to the kernel; return the number of bytes.

        This also happens by itself when there are too many idle bytes.

        Args:
            idle_limit: the idle bytes that keep their pages; None keeps the recent peak.
        """
        return self._exclusively(self._backing.trim, idle_limit)

    def statistics(self) -> FreeListStatistics:
        """The current figures."""
        return self._exclusively(self._free_list.statistics)

    def check(self) -> None:
        """Recompute the tables of blocks from scratch.

        Raises:
            InvariantViolated: the tables contradict each other.
        """
        self._exclusively(self._free_list.check)

    def _exclusively(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``action`` on the tables of blocks, after the blocks of dead views are freed."""
        with self._lock:
            if self._busy:
                raise _Reentered(f"arena {self.segment.name} was entered twice by one thread")
            self._busy = True
            try:
                released = self.released
                while released:
                    self._release(released.popleft()[0])
                return action(*args, **kwargs)
            finally:
                self._busy = False

    def _release(self, offset: int) -> None:
        self._backing.free(offset)
        pack_header(self.segment.buffer, offset - HEADER_BYTES, MAGIC, 0, 0, 0, 0)


def _create_segment(limit: int, capacity: int | None, name: str) -> Segment:
    if capacity is not None:
        return Segment.create(capacity, name)
    capacity = min(max(SMALLEST_CAPACITY_BYTES, 16 * limit), LARGEST_CAPACITY_BYTES)
    return Segment.create_sparse(capacity, name)


_client_arena: Arena | None = None
#: Why there is none: the system refuses it. A shortage may pass.
_refusal: OSError | None = None
#: Re-entrant: a handler of a signal may make the arena while its thread does.
_client_arena_lock = threading.RLock()


def client_arena() -> Arena:
    """The arena of this process's own tensors, made on first use.

    A forked child gets one of its own; the arrays that it inherited stay readable, and what it
    writes to them stays in the child.

    Raises:
        OSError: there is no shared memory here; tensors then lie on the heap, and `local` works.
    """
    global _client_arena, _refusal
    if _client_arena is None:
        if _refusal is not None:
            raise OSError(*_refusal.args)
        with _client_arena_lock:
            if _client_arena is None:
                try:
                    made = Arena(name="client arena", number=CLIENT_ARENA)
                    made.segment.reserve(0, 1)  # to see whether it can
                except OSError as error:
                    if error.errno not in SHORTAGES and is_from_kernel(error):
                        _refusal = error.with_traceback(None)
                    raise
                _client_arena = _client_arena or made
    return _client_arena


def _forget_in_child() -> None:
    # A thread that does not exist in the child may hold the lock.
    global _client_arena, _client_arena_lock
    _client_arena, _client_arena_lock = None, threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)
