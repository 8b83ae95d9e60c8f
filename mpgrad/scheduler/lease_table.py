"""LeaseTable: the holders of each block of the engine's arena and of the GPU workers.

It has one count per block, in one process. Blocks of the client's arena are not counted: the client
keeps them until the last message of the graph.
"""

from __future__ import annotations

from typing import Protocol

from mpgrad.base.handles import ENGINE_ARENA, Block, GradientRef, is_counted
from mpgrad.errors import InvariantViolated


class BlockAllocator(Protocol):
    """Decides where blocks lie (``shm.free_list.FreeList``)."""

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Offset and generation of a new block; raises SharedMemoryExhausted."""
        ...

    def free(self, offset: int) -> None: ...


class LeaseTable:
    """Counts the holders of each block; the last release frees it."""

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator
        #: Exactly the live blocks; every count is at least 1.
        self.holders: dict[Block, int] = {}
        #: Blocks of GPU workers without a holder, before their makers have been told.
        self.freed: list[Block] = []

    def allot(self, nbytes: int) -> Block:
        """A new block with one holder, the caller.

        Raises:
            SharedMemoryExhausted: the arena's limit is reached.
        """
        offset, generation = self._allocator.allocate(nbytes)
        block = Block(ENGINE_ARENA, offset, nbytes, generation)
        self.holders[block] = 1
        return block

    def adopt(self, block: Block) -> None:
        """Count a block that a GPU worker has just made; the caller is its one holder."""
        if block in self.holders:
            raise InvariantViolated(f"a block is made a second time: {block}")
        self.holders[block] = 1

    def is_exclusive(self, ref: GradientRef) -> bool:
        """Whether ``ref`` is a counted block with a single holder."""
        return isinstance(ref, Block) and self.holders.get(ref) == 1

    def hold(self, ref: GradientRef) -> None:
        """Add a holder to ``ref`` if it is a counted block."""
        count = self.holders.get(ref)  # type: ignore[arg-type]
        if count is not None:
            self.holders[ref] = count + 1  # type: ignore[index]
        elif is_counted(ref):
            raise InvariantViolated(f"a freed block gets a holder again: {ref}")

    def release(self, ref: GradientRef) -> None:
        """Remove a holder; without one the block is freed, or its maker will be told."""
        count = self.holders.get(ref)  # type: ignore[arg-type]
        if count is None:
            if is_counted(ref):
                raise InvariantViolated(f"a freed block is released again: {ref}")
            return
        assert isinstance(ref, Block)
        if count == 1:
            del self.holders[ref]
            if ref.arena == ENGINE_ARENA:
                self._allocator.free(ref.offset)
            else:
                self.freed.append(ref)
        else:
            self.holders[ref] = count - 1

    def counts(self) -> dict[Block, int]:
        """A copy of the table (for invariants)."""
        return dict(self.holders)

    def __len__(self) -> int:
        return len(self.holders)
