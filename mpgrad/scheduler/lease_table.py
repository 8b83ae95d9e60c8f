"""LeaseTable: who may not yet lose which block of the engine's arena, or of a GPU worker.

One count per block, kept in one process. Blocks of the client's arena are not counted: the client
keeps them until the graph's last message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from mpgrad.base.handles import ENGINE_ARENA, Block, GradientRef, is_counted
from mpgrad.errors import InvariantViolated


class BlockAllocator(Protocol):
    """Decides where blocks lie (``shm.free_list.FreeList``)."""

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Offset and generation of a new block; raises SharedMemoryExhausted."""
        ...

    def free(self, offset: int) -> None: ...


@dataclass
class LeaseTable:
    """Counts the holders of each block; the last release frees it."""

    #: All and only live blocks; every count is at least 1.
    holders: dict[Block, int] = field(default_factory=dict)
    #: Blocks of GPU workers that nobody holds any more and their makers do not know it yet.
    freed: list[Block] = field(default_factory=list)

    def use(self, allocator: BlockAllocator) -> None:
        """From now on ask ``allocator``, which knows the live blocks."""
        self._allocator = allocator

    def allot(self, nbytes: int) -> Block:
        """A new block, held once by its caller.

        Raises:
            SharedMemoryExhausted: the arena's limit is reached.
        """
        offset, generation = self._allocator.allocate(nbytes)
        block = Block(ENGINE_ARENA, offset, nbytes, generation)
        self.holders[block] = 1
        return block

    def adopt(self, block: Block) -> None:
        """Count a block that a GPU worker has just made; it is held once by its caller."""
        if block in self.holders:
            raise InvariantViolated(f"a block is made a second time: {block}")
        self.holders[block] = 1

    def is_live(self, block: Block) -> bool:
        return block in self.holders

    def is_exclusive(self, ref: GradientRef) -> bool:
        """Whether ``ref`` is a counted block with a single holder."""
        return isinstance(ref, Block) and self.holders.get(ref) == 1

    def hold(self, ref: GradientRef) -> None:
        """One more holder of ``ref`` if that is a counted block."""
        count = self.holders.get(ref)  # type: ignore[arg-type]
        if count is not None:
            self.holders[ref] = count + 1  # type: ignore[index]
        elif is_counted(ref):
            raise InvariantViolated(f"a freed block is held again: {ref}")

    def release(self, ref: GradientRef) -> None:
        """One holder less; after the last one the block is free, or its maker is to be told."""
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
