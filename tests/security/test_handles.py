"""What a handle may name: nothing outside its arena, its block, or its block's present use."""

from __future__ import annotations

import fcntl
import os

import numpy as np
import pytest

from mpgrad.base.handles import CLIENT_ARENA, ENGINE_ARENA, Block, TensorHandle
from mpgrad.errors import ProtocolError
from mpgrad.shm.arena import Arena
from mpgrad.shm.mapped_arena import ForeignArena
from mpgrad.shm.segment import REQUIRED_SEALS, Segment
from mpgrad.wire.programs import InlineArray
from mpgrad.workers.worker_memory import WorkerMemory, open_inline

KIB = 1024


@pytest.fixture
def arena() -> Arena:
    return Arena(1 << 20, "test", capacity_bytes=1 << 24)


@pytest.fixture
def memory(arena: Arena) -> WorkerMemory:
    """A worker's view of it (it has nothing to look for in the second arena)."""
    engine = Segment.create(1 << 16, "engine")
    return WorkerMemory(os.dup(arena.segment.fd), os.dup(engine.fd))


FORGERIES = {
    "generation": lambda block: block._replace(generation=block.generation + 1),
    "a free block's generation": lambda block: block._replace(generation=0),
    "nobody's block": lambda block: block._replace(offset=block.offset + 64),
    "not aligned": lambda block: block._replace(offset=block.offset + 8),
    "before the arena": lambda block: block._replace(offset=-64),
    "the arena's first header": lambda block: block._replace(offset=0),
    "behind the arena": lambda block: block._replace(offset=1 << 40),
    "more bytes than lie there": lambda block: block._replace(nbytes=block.nbytes + KIB),
    "another arena": lambda block: block._replace(arena=7),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_block_is_never_read(arena: Arena, memory: WorkerMemory, forgery: str) -> None:
    block = arena.allocate(4 * KIB)
    forged: Block = FORGERIES[forgery](block)
    # The array is as large as the handle says, so that only the block itself can be wrong.
    shape = (forged.nbytes // 8,)
    with pytest.raises(ProtocolError):
        memory.open_gradient(forged, shape, np.float64)
    assert memory.open_gradient(block, (KIB // 2,), np.float64).shape == (KIB // 2,)


def test_an_array_larger_than_its_block_is_never_read(arena: Arena, memory: WorkerMemory) -> None:
    block = arena.allocate(4 * KIB)
    with pytest.raises(ProtocolError, match="leaves the"):
        memory.open_gradient(block, (KIB,), np.float64)


@pytest.mark.parametrize("offset", [-64, 1 << 40], ids=["before", "behind"])
def test_a_block_to_write_lies_in_the_arena(memory: WorkerMemory, offset: int) -> None:
    with pytest.raises(ProtocolError, match="can lie at offset"):
        memory.open_output(Block(ENGINE_ARENA, offset, 64, 1), (8,), np.float64)


def test_nothing_is_written_into_the_clients_arena(arena: Arena, memory: WorkerMemory) -> None:
    """Its tensors lie there; only the client allots blocks of it."""
    with pytest.raises(ProtocolError, match="cannot be written into arena 0"):
        memory.open_output(arena.allocate(4 * KIB), (512,), np.float64)


def test_what_others_have_written_is_mapped_for_reading(memory: WorkerMemory) -> None:
    """Not only NumPy's flag says so: compiled code does not look at that."""
    with open("/proc/self/maps") as lines:
        modes = {int(line.partition("-")[0], 16): line.split()[1] for line in lines}
    for number in (CLIENT_ARENA, ENGINE_ARENA):
        assert modes[memory._arena(number).segment.address] == "r--s"
    block = Block(ENGINE_ARENA, KIB, 4 * KIB, 1)
    output = memory.open_output(block, (512,), np.float64)
    output[:] = 3.0
    memory.seal(block)
    assert memory.open_gradient(block, (512,), np.float64)[-1] == 3.0
    assert not memory.is_protected(output)


@pytest.mark.parametrize(
    ("shape", "strides", "dtype"),
    [((513,), (8,), "<f8"), ((2,), (-8,), "<f8"), ((2,), (1 << 40,), "<f8"), ((1,), (8,), "O")],
    ids=["too long", "backwards", "far", "objects"],
)
def test_a_strided_handle_stays_in_its_block(
    arena: Arena, memory: WorkerMemory, shape: tuple[int], strides: tuple[int], dtype: str
) -> None:
    block = arena.allocate(4 * KIB)
    handle = TensorHandle(
        CLIENT_ARENA, block.offset, block.offset, block.generation, shape, strides, dtype
    )
    with pytest.raises(ProtocolError):
        memory._arena(CLIENT_ARENA).open_strided(handle)


def test_a_block_that_was_used_again_is_stale(arena: Arena, memory: WorkerMemory) -> None:
    old = arena.allocate(4 * KIB)
    arena.free(old)
    new = arena.allocate(4 * KIB)
    assert (new.offset, new.nbytes) == (old.offset, old.nbytes)  # else this test shows nothing
    with pytest.raises(ProtocolError, match="stale handle"):
        memory.open_gradient(old, (512,), np.float64)


@pytest.mark.parametrize("where", [(-1, 8), (1 << 40, 8), (0, 1 << 40), (8, -16)], ids=str)
def test_a_program_lies_in_the_arena(memory: WorkerMemory, where: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError, match="cannot lie at"):
        memory.read_bytes(*where)


def test_bytes_of_a_message_are_not_taken_for_addresses_of_objects() -> None:
    with pytest.raises(ProtocolError, match="object"):
        open_inline(InlineArray((1,), (8,), "O", 0, b"\x08" * 8))


def test_memory_that_could_shrink_is_refused() -> None:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 4 * KIB)
    with pytest.raises(ProtocolError, match="not sealed"):
        ForeignArena(descriptor)


def test_an_arena_can_neither_shrink_nor_grow_nor_be_unsealed(arena: Arena) -> None:
    descriptor = arena.segment.fd
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & REQUIRED_SEALS == REQUIRED_SEALS
    for nbytes in (0, arena.segment.nbytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, nbytes)
