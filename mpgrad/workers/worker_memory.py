"""WorkerMemory: opens handles, writes outputs into blocks, and finds the blocks that are kept.

User code may keep a view of a block after its task; the coordinator is told of such blocks.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any, TypeAlias

import numpy as np

from mpgrad.base.handles import CLIENT_ARENA, ENGINE_ARENA, Block
from mpgrad.errors import ProtocolError
from mpgrad.shm.mapped_arena import ForeignArena, lease_of
from mpgrad.wire.programs import InlineArray, PackedArray

Array: TypeAlias = np.ndarray[Any, Any]


class WorkerMemory:
    """Both arenas as one process sees them."""

    def __init__(self, client_arena_fd: int, engine_arena_fd: int) -> None:
        self._outputs = ForeignArena(engine_arena_fd, "engine arena", number=ENGINE_ARENA)
        # What others have written is mapped for reading only: compiled code in user code writes
        # arrays that NumPy calls read-only.
        reading = os.dup(engine_arena_fd)
        self._arenas = {
            CLIENT_ARENA: ForeignArena(client_arena_fd, "client arena", number=CLIENT_ARENA),
            ENGINE_ARENA: ForeignArena(reading, "engine arena", number=ENGINE_ARENA),
        }
        for arena in self._arenas.values():
            arena.segment.protect()
        self._arenas[ENGINE_ARENA].released = self._outputs.released
        self._diverts_writes = False
        #: The number of open arrays of each block of the engine's arena.
        self._open: Counter[tuple[int, int]] = Counter()
        self._blocks: dict[tuple[int, int], Block] = {}
        #: The blocks that the coordinator has been told are kept.
        self._kept: set[tuple[int, int]] = set()

    def use_checksums(self) -> None:
        """Publish blocks with checksums, and compare those of the blocks that are read."""
        self._outputs.has_checksums = self._arenas[ENGINE_ARENA].has_checksums = True

    # ------------------------------------------------------------------ reading

    def open_gradient(self, ref: Block | bytes, shape: tuple[int, ...], dtype: Any) -> Array:
        """A read-only array of ``shape`` and ``dtype`` over a gradient.

        Raises:
            ProtocolError: it does not fit, or the handle is stale.
            BytesCorrupted: see ``use_checksums``.
        """
        if isinstance(ref, bytes):
            try:
                return np.frombuffer(ref, dtype, math.prod(shape)).reshape(shape)
            except ValueError as error:
                raise ProtocolError(f"a gradient of {len(ref)} bytes: {error}") from None
        arena = self._arena(ref.arena)
        arena.check_bytes(ref)
        return self._open_block(arena, ref, shape, dtype, writeable=False)

    def open_packed(self, packed: PackedArray) -> Array:
        """A read-only array over a saved array of forward."""
        if isinstance(packed, InlineArray):
            return open_inline(packed)
        return self._arena(packed.handle.arena).open_strided(packed.handle)

    def read_bytes(self, offset: int, nbytes: int) -> memoryview:
        """Bytes of the client's arena: a task's program."""
        segment = self._arenas[CLIENT_ARENA].segment
        if not 0 <= offset <= offset + nbytes <= segment.nbytes:
            raise ProtocolError(f"a program of {nbytes} bytes cannot lie at offset {offset}")
        return memoryview(segment.buffer)[offset : offset + nbytes]

    # ------------------------------------------------------------------ writing

    def open_output(self, block: Block, shape: tuple[int, ...], dtype: Any) -> Array:
        """A writable array over a block that this task was lent.

        Raises:
            ProtocolError: it does not fit, or the coordinator cannot lend the block.
        """
        if block.arena != ENGINE_ARENA:
            raise ProtocolError(f"a result cannot be written into arena {block.arena}: {block}")
        return self._open_block(self._outputs, block, shape, dtype, writeable=True)

    def seal(self, block: Block) -> None:
        """``block`` is written: others may read it from now on."""
        self._outputs.write_header(block)

    def address_of_output(self, block: Block) -> int:
        """Where this process writes ``block``, which its task was lent."""
        return self._outputs.segment.address + block.offset

    def address_of_input(self, block: Block) -> int:
        """Where it reads ``block``; -1 for memory that is not on the host."""
        return self._arena(block.arena).segment.address + block.offset

    def _open_block(
        self,
        arena: ForeignArena,
        block: Block,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        writeable: bool,
    ) -> Array:
        track = block.arena == ENGINE_ARENA
        array = arena.open(block, shape, dtype, writeable=writeable, track=track)
        if track:
            token = (block.offset, block.generation)
            self._open[token] += 1
            self._blocks[token] = block
        return array

    def _arena(self, number: int) -> ForeignArena:
        if number not in self._arenas:
            raise ProtocolError(f"there is no arena {number}")
        return self._arenas[number]

    def release(self, blocks: tuple[Block, ...]) -> None:
        """Free blocks of this process that have no holder any more.

        Raises:
            ProtocolError: a CPU worker makes no blocks.
        """
        raise ProtocolError(f"this worker has made no blocks: {blocks}")

    # ------------------------------------------------------------------ writes of user code

    def is_protected(self, array: Array) -> bool:
        """Whether ``array`` lies in memory that this process cannot write."""
        return any(lease_of(array, arena.segment) is not None for arena in self._arenas.values())

    def divert_writes(self) -> None:
        """Let user code write into the arenas, where nobody else sees it, until ``protect``.

        A task whose worker has died runs so when it is tried again: if a write has killed it, the
        task now ends, and ``diverted_bytes`` says that it has written. Where the kernel does not
        show that, nothing changes.
        """
        self._diverts_writes = True
        if not all(arena.segment.divert_writes() for arena in self._arenas.values()):
            self.protect()

    def protect(self) -> None:
        """Drop what has been written since ``divert_writes``."""
        if self._diverts_writes:
            self._diverts_writes = False
            for arena in self._arenas.values():
                arena.segment.protect()

    def diverted_bytes(self) -> int:
        """The bytes of the pages written since ``divert_writes``."""
        if not self._diverts_writes:
            return 0
        return sum(arena.segment.diverted_bytes() for arena in self._arenas.values())

    # ------------------------------------------------------------------ what stays open

    def settle(self) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """After a task: the blocks that user code newly keeps, and those that it has released."""
        released = self._arenas[ENGINE_ARENA].released
        gone = []
        while released:
            token = released.popleft()
            self._open[token] -= 1
            if self._open[token] == 0:
                del self._open[token]
                block = self._blocks.pop(token)
                if token in self._kept:
                    self._kept.remove(token)
                    gone.append(block)
        fresh = [token for token in self._open if token not in self._kept]
        self._kept.update(fresh)
        return tuple(self._blocks[token] for token in fresh), tuple(gone)


def open_inline(packed: InlineArray, data: memoryview | None = None) -> Array:
    """A read-only array over the bytes of a message, or over a copy of them, with its original
    strides.

    Raises:
        ProtocolError: the elements would lie outside the bytes.
    """
    try:
        dtype = np.dtype(packed.dtype)
        # NumPy checks the strides, but accepts a negative offset, and bytes as object addresses.
        if packed.offset < 0 or dtype.hasobject:
            raise ValueError(f"dtype {dtype} at offset {packed.offset}")
        memory = packed.data if data is None else data
        return np.ndarray(packed.shape, dtype, memory, packed.offset, packed.strides)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"an inline array that does not fit its bytes: {error}") from None
