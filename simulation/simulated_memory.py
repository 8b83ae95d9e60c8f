"""The simulation's shared memory: every block knows its generation and content.

Each access states what it expects. So use after free, a stale reference, a second write to a
published block and a read of an unwritten one are found at the access itself.
"""

from __future__ import annotations

from mpgrad.base.handles import (
    CLIENT_ARENA,
    CLIENT_DEVICE_ARENA,
    ENGINE_ARENA,
    WORKER_DEVICE_ARENA,
    Block,
)
from mpgrad.errors import BytesCorrupted, SharedMemoryExhausted
from mpgrad.shm.free_list import FreeList, FreeListStatistics
from simulation.path_counts import Content

#: The content of a block whose worker died while it wrote.
GARBAGE: Content = (-1, -1)
#: A block that never existed.
UNKNOWN_BLOCK = Block(ENGINE_ARENA, 64, 64, 1 << 40)
#: Address space of the simulated engine arena.
ARENA_BYTES = 1 << 40


class MemoryFault(Exception):
    """An access to memory that does not belong to the process (any more)."""


class _Cell:
    __slots__ = ("content", "generation", "is_damaged")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.content: Content | None = None
        #: Its checksum is that of other bytes.
        self.is_damaged = False


class SimulatedMemory:
    """The arenas and the memory of GPUs; for the core it is the engine arena's allocator."""

    def __init__(self, limit_bytes: int) -> None:
        self.free_list = FreeList(ARENA_BYTES, ARENA_BYTES, "simulated arena")
        #: It may change at any time, which FreeList's own limit may not.
        self.limit_bytes = limit_bytes
        self._cells: dict[tuple[int, int], _Cell] = {}
        #: What it has answered to each request of the core: offset and generation, or its refusal.
        self.answers: list[tuple[int, int] | SharedMemoryExhausted] = []
        #: The number of allocations without room.
        self.refusals = 0
        self._client_blocks = 0
        self._device_blocks = 0
        #: Memory of GPU workers that are dead.
        self._lost_arenas: set[int] = set()

    # ------------------------------------------------------------------ the coordinator's side

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """As ``FreeList.allocate``."""
        used = self.free_list.used_bytes
        if used + nbytes > self.limit_bytes:
            self.refusals += 1
            full = SharedMemoryExhausted(nbytes, used, self.limit_bytes, "simulated arena")
            self.answers.append(full)
            raise full
        offset, generation = self.free_list.allocate(nbytes)
        self.answers.append((offset, generation))
        self._cells[ENGINE_ARENA, offset] = _Cell(generation)
        return offset, generation

    def free(self, offset: int) -> None:
        """As ``FreeList.free``."""
        self.free_list.free(offset)
        del self._cells[ENGINE_ARENA, offset]

    def statistics(self) -> FreeListStatistics:
        """As ``FreeList.statistics``."""
        return self.free_list.statistics()

    # ------------------------------------------------------------------ the client's arena

    def allot_client(self, nbytes: int, content: Content, *, on_device: bool = False) -> Block:
        """A written block of the client's own; its addresses are never used again."""
        self._client_blocks += 1
        arena = CLIENT_DEVICE_ARENA if on_device else CLIENT_ARENA
        block = Block(arena, self._client_blocks << 20, nbytes, self._client_blocks)
        self._cells[arena, block.offset] = _Cell(block.generation)
        self.write(block, content)
        return block

    def free_client(self, block: Block) -> None:
        del self._cells[block.arena, block.offset]

    # ------------------------------------------------------------------ a GPU worker's memory

    def make_on_device(self, arena: int, nbytes: int, content: Content) -> Block:
        """A written block that a GPU worker made where it found room."""
        self._device_blocks += 1
        block = Block(arena, self._device_blocks << 20, nbytes, self._device_blocks)
        self._cells[arena, block.offset] = _Cell(block.generation)
        self.write(block, content)
        return block

    def free_on_device(self, block: Block) -> None:
        """Free a block: the worker that made it was told that it has no holder."""
        self._cell(block, "freed again")
        del self._cells[block.arena, block.offset]

    def lose(self, arena: int) -> None:
        """A GPU worker died, and its memory with it."""
        self._lost_arenas.add(arena)
        for key in [key for key in self._cells if key[0] == arena]:
            del self._cells[key]

    def is_lost(self, block: Block) -> bool:
        """Whether it lay in the memory of a dead GPU worker."""
        return block.arena in self._lost_arenas

    def device_blocks(self) -> int:
        """Blocks in the memory of living GPU workers."""
        return sum(arena >= WORKER_DEVICE_ARENA for arena, _ in self._cells)

    # ------------------------------------------------------------------ all processes

    def check_live(self, block: Block) -> None:
        """Raise MemoryFault unless ``block`` is in the same use as when it was handed out."""
        self._cell(block, "looked at")

    def read(self, block: Block) -> Content:
        content = self._cell(block, "read").content
        if content is None:
            raise MemoryFault(f"read before it was written: {block}")
        return content

    def check_bytes(self, block: Block) -> None:
        """As ``MappedArena.check_bytes``.

        Raises:
            BytesCorrupted: the block has changed since it was written.
        """
        if self.is_damaged(block):
            raise BytesCorrupted(f"{block}")

    def is_damaged(self, block: Block) -> bool:
        """Whether the block has changed since it was written."""
        return self._cell(block, "compared").is_damaged

    def flip(self, block: Block) -> bool:
        """Change a written block that is still in the same use; whether there is one."""
        cell = self._cells.get((block.arena, block.offset))
        if cell is None or cell.generation != block.generation or cell.content is None:
            return False
        paths, fingerprint = cell.content
        cell.content, cell.is_damaged = (paths + 1, fingerprint), True
        return True

    def write(self, block: Block, content: Content) -> None:
        """Write once: readers rely on the content."""
        cell = self._cell(block, "written")
        if cell.content is not None:
            raise MemoryFault(f"written twice: {block}")
        cell.content = content

    def overwrite(self, block: Block, content: Content) -> None:
        """Write as the only holder of the block."""
        cell = self._cell(block, "overwritten")
        cell.content, cell.is_damaged = content, False

    def _cell(self, block: Block, verb: str) -> _Cell:
        cell = self._cells.get((block.arena, block.offset))
        if cell is None:
            raise MemoryFault(f"{verb} after it was freed: {block}")
        if cell.generation != block.generation:
            raise MemoryFault(
                f"{verb} with a stale generation ({cell.generation} lives there): {block}"
            )
        return cell
