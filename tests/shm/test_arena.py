"""Arena and ForeignArena: the same bytes on both sides, and no handle that leads astray."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpgrad.base.handles import CLIENT_ARENA, ENGINE_ARENA, TensorHandle
from mpgrad.errors import InvariantViolated, ProtocolError, SharedMemoryExhausted
from mpgrad.shm import arena as arena_module
from mpgrad.shm.arena import Arena, client_arena, default_limit_bytes
from mpgrad.shm.mapped_arena import ForeignArena

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def arena():
    return Arena(64 * MIB, "test", capacity_bytes=1 << 32)


@pytest.fixture(params=["owner", "foreign"])
def reader(request, arena):
    """The two kinds of arena over the same memory: whoever reads must get the same answers."""
    if request.param == "owner":
        return arena
    return ForeignArena(os.dup(arena.segment.fd), "test", number=CLIENT_ARENA)


def handle_of(arena: Arena, array: np.ndarray) -> TensorHandle:
    offset, block_offset, generation = arena.locate(array)
    return TensorHandle(
        CLIENT_ARENA,
        offset,
        block_offset,
        generation,
        array.shape,
        array.strides,
        array.dtype.str,
    )


# ------------------------------------------------------------------ arrays of the owner


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 5), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.complex128])
def test_empty_gives_an_aligned_contiguous_array(arena, shape, dtype):
    array = arena.empty(shape, dtype)
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.__array_interface__["data"][0] % 64 == 0


def test_a_block_returns_with_its_last_view_and_is_used_first(arena):
    array = arena.empty((1000,), np.float64)
    address = array.__array_interface__["data"][0]
    tail = array[10:]
    del array
    assert arena.statistics().live_blocks == 1
    del tail
    assert arena.statistics().live_blocks == 0
    assert arena.empty((1000,), np.float64).__array_interface__["data"][0] == address


def test_the_limit_is_an_error_that_names_it_and_passes(arena):
    held = arena.empty((48 * MIB,), np.uint8)
    with pytest.raises(SharedMemoryExhausted) as caught:
        arena.empty((20 * MIB,), np.uint8)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.requested, error.used, error.limit) == (20 * MIB, 48 * MIB, 64 * MIB)
    assert "MPGRAD_SHM_LIMIT" in str(error)
    del held
    arena.empty((20 * MIB,), np.uint8)[-1] = 1


@pytest.mark.parametrize(
    ("shape", "dtype", "error"), [((-1,), "f4", ValueError), ((2,), object, TypeError)]
)
def test_a_refused_array_costs_no_block(arena, shape, dtype, error):
    with pytest.raises(error):
        arena.empty(shape, dtype)
    assert arena.statistics().live_blocks == 0


def test_threads_never_get_the_same_bytes(arena):
    wrong = []

    def work(number: int) -> None:
        kept = []
        for i in range(200):
            array = arena.empty((50 + 37 * (i % 5),), np.int64)
            array.fill(number * 1000 + i)
            kept.append((array, number * 1000 + i))
            if len(kept) > 7:
                array, value = kept.pop(i % 7)
                if not (array == value).all():
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    arena.check()
    assert arena.statistics().live_blocks == 0


def test_garbage_collection_inside_an_allocation_does_not_deadlock(arena):
    class Cycle:
        pass

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            cycle = Cycle()
            cycle.me, cycle.array = cycle, arena.empty((10,), np.float32)
    finally:
        gc.set_threshold(*threshold)
    del cycle
    gc.collect()
    assert arena.statistics().live_blocks == 0


def test_a_finaliser_may_make_arrays_at_any_moment(arena):
    made = []

    class Cycle:
        def __del__(self):
            made.append(arena.empty((10,), np.float32))

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            cycle = Cycle()
            cycle.me, cycle.array = cycle, arena.empty((10,), np.float32)
    finally:
        gc.set_threshold(*threshold)
    del cycle
    gc.collect()
    assert len(made) == 200
    made.clear()
    arena.check()
    assert arena.statistics().live_blocks == 0


def test_an_array_made_inside_an_allocation_lies_on_the_heap(arena, monkeypatch):
    inner = []
    populate = arena.segment.populate

    def interrupted(offset, nbytes):
        inner.append(arena.empty((4,), np.float32))
        populate(offset, nbytes)

    monkeypatch.setattr(arena._backing, "_populate", interrupted)
    outer = arena.empty((4,), np.float32)
    assert arena.locate(outer) is not None
    assert [arena.locate(array) for array in inner] == [None]


def test_blocks_by_hand(arena):
    block = arena.allocate(1000)
    assert arena.statistics().used_bytes >= 1000
    arena.open(block, (1000,), np.uint8, writeable=True)[...] = 7
    assert bytes(arena.segment.buffer[block.offset : block.offset + 3]) == b"\7\7\7"
    arena.free(block)
    with pytest.raises(InvariantViolated):
        arena.free(block)
    assert arena.allocate(1000).generation > block.generation


def test_trim_gives_idle_pages_back(arena):
    kept = arena.empty((MIB,), np.uint8)
    kept.fill(3)
    arena.empty((32 * MIB,), np.uint8).fill(1)
    before = os.fstat(arena.segment.fd).st_blocks * 512
    assert arena.trim(0) > 31 * MIB
    assert os.fstat(arena.segment.fd).st_blocks * 512 < before - 31 * MIB
    assert (kept == 3).all()
    arena.empty((32 * MIB,), np.uint8).fill(1)
    arena.check()


# ------------------------------------------------------------------ the same for every reader


def test_a_block_opens_to_the_same_bytes(arena, reader):
    block = arena.allocate(24)
    arena.open(block, (2, 3), np.float32, writeable=True)[...] = [[1, 2, 3], [4, 5, 6]]
    array = reader.open(block, (2, 3), np.float32, writeable=False)
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert not array.flags.writeable


@st.composite
def viewers(draw):
    """A function that slices and permutes a (6, 5, 4) array; steps of any sign."""
    step = st.sampled_from([-3, -2, -1, 1, 2, 3])
    edge = st.none() | st.integers(-6, 6)
    index = tuple(draw(st.builds(slice, edge, edge, step)) for _ in range(3))
    axes = draw(st.permutations(range(3)))
    return lambda array: array[index].transpose(axes)


ARENA = Arena(MIB, "property test", capacity_bytes=1 << 30)
READER = ForeignArena(os.dup(ARENA.segment.fd), number=CLIENT_ARENA)


@settings(max_examples=150)
@given(viewers())
def test_any_view_travels_as_a_handle(viewer):
    array = ARENA.empty((6, 5, 4), np.int32)
    array[...] = np.arange(120).reshape(6, 5, 4)
    part = viewer(array)
    handle = handle_of(ARENA, part)
    for reader in (ARENA, READER):
        opened = reader.open_strided(handle)
        assert opened.tolist() == part.tolist()
        assert opened.strides == part.strides
        assert reader.locate(opened) == ARENA.locate(part)


def test_an_opened_array_can_be_passed_on(arena, reader):
    array = arena.empty((4, 4), np.float32)
    handle = handle_of(arena, array[1:, ::2])
    passed_on = reader.open_strided(handle)[::-1]
    assert reader.locate(passed_on)[0] == handle.offset + 2 * array.strides[0]
    assert reader.locate(passed_on)[1:] == (handle.block_offset, handle.generation)


def test_locate_finds_only_what_lies_inside(arena, reader):
    handle = handle_of(arena, arena.empty((8,), np.float32))
    array = reader.open_strided(handle)
    beyond = np.lib.stride_tricks.as_strided(array, (16,), (4,))
    assert reader.locate(array[3:]) == (handle.offset + 12, *handle[2:4])
    assert reader.locate(beyond) is None
    assert reader.locate(beyond[:8]) is not None
    assert reader.locate(array.copy()) is None
    assert reader.locate(np.ones(3)) is None
    assert reader.locate(Arena(MIB, "other", capacity_bytes=MIB).empty((8,), "f4")) is None


def test_a_stale_block_is_found_out(arena, reader):
    block = arena.allocate(1000)
    handle = TensorHandle(0, block.offset, block.offset, block.generation, (2,), (8,), "<f8")
    reader.open(block, (2,), "<f8", writeable=False)
    arena.free(block)
    for again in range(2):
        with pytest.raises(ProtocolError, match=r"stale handle.*generation"):
            reader.open(block, (2,), "<f8", writeable=False)
        with pytest.raises(ProtocolError, match="stale handle"):
            reader.open_strided(handle)
        assert again or arena.allocate(1000).offset == block.offset


@pytest.mark.parametrize("writeable", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"offset": 0},
        {"offset": -64},
        {"offset": 100},
        {"offset": 1 << 32},
        {"offset": (1 << 32) - 64},
        {"nbytes": 15},
        {"nbytes": -1},
    ],
)
def test_a_forged_block_is_refused(arena, reader, change, writeable):
    block = arena.allocate(1000)._replace(**change)
    with pytest.raises(ProtocolError):
        reader.open(block, (2,), "<f8", writeable=writeable, track=True)
    assert not reader.released


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 0},
        {"offset": 1 << 40},
        {"block_offset": 128},
        {"block_offset": 1 << 40},
        {"generation": 0},
        {"generation": 99},
        {"shape": (126,)},
        {"shape": (1 << 61,)},
        {"shape": (2, 2)},
        {"shape": (-2,)},
        {"strides": (-8,)},
        {"strides": (1000,)},
        {"dtype": "O"},
        {"dtype": "nonsense"},
    ],
)
def test_a_forged_handle_is_refused(arena, reader, change):
    block = arena.allocate(1000)
    handle = TensorHandle(0, block.offset, block.offset, block.generation, (2,), (8,), "<f8")
    assert reader.open_strided(handle).nbytes == 16
    with pytest.raises(ProtocolError):
        reader.open_strided(handle._replace(**change))


def test_only_a_tracked_block_tells_of_its_end(arena):
    reader = ForeignArena(os.dup(arena.segment.fd))
    block = arena.allocate(64)
    reader.open(block, (8,), "<f8", writeable=False)
    assert not reader.released
    part = reader.open(block, (8,), "<f8", writeable=False, track=True)[1:]
    assert not reader.released
    del part
    assert list(reader.released) == [(block.offset, block.generation)]


def test_a_foreign_writer_publishes_a_block(arena):
    writer = ForeignArena(os.dup(arena.segment.fd))
    assert writer.number == ENGINE_ARENA
    block = arena.allocate(64)._replace(generation=1 << 40)
    writer.open(block, (8,), "<i8", writeable=True)[...] = range(8)
    with pytest.raises(ProtocolError, match="stale"):
        arena.open(block, (8,), "<i8", writeable=False)
    writer.write_header(block)
    assert arena.open(block, (8,), "<i8", writeable=False).sum() == 28


def test_arrays_outlive_their_arena():
    arena = Arena(MIB, "test", capacity_bytes=MIB)
    reader = ForeignArena(os.dup(arena.segment.fd))
    array = arena.empty((100,), np.int64)
    array.fill(5)
    opened = reader.open_strided(handle_of(arena, array))
    for owner in (arena, reader):
        owner.close()
    del arena, reader, array, owner
    gc.collect()
    assert opened.sum() == 500


# ------------------------------------------------------------------ another process

READER_PROCESS = """
import sys
from mpgrad.base.handles import TensorHandle
from mpgrad.shm.mapped_arena import ForeignArena
fd, offset, block_offset, generation, stride = map(int, sys.argv[1:])
handle = TensorHandle(0, offset, block_offset, generation, (50,), (stride,), "<i8")
print(ForeignArena(fd).open_strided(handle).tolist())
"""


@pytest.mark.slow
def test_another_process_reads_without_a_copy(arena):
    array = arena.empty((100,), np.int64)
    array[...] = np.arange(100)
    handle = handle_of(arena, array[::-2])
    numbers = [arena.segment.fd, *handle[1:4], *handle.strides]
    done = subprocess.run(
        [sys.executable, "-c", READER_PROCESS, *map(str, numbers)],
        pass_fds=[arena.segment.fd],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{array[::-2].tolist()}\n"


# ------------------------------------------------------------------ the client's arena


def test_all_threads_share_one_client_arena(monkeypatch):
    monkeypatch.setattr(arena_module, "_client_arena", None)
    barrier, found = threading.Barrier(8), []

    def work():
        barrier.wait()
        found.append(client_arena())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert found[0].number == CLIENT_ARENA


def test_the_limit_comes_from_the_setting_else_from_the_machine(monkeypatch):
    monkeypatch.setenv("MPGRAD_SHM_LIMIT", "3M")
    assert default_limit_bytes() == 3 * MIB
    assert Arena().statistics().limit_bytes == 3 * MIB
    monkeypatch.delenv("MPGRAD_SHM_LIMIT")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < default_limit_bytes() <= 0.8 * memory


LITTLE_ADDRESS_SPACE = """
import resource
import numpy as np
from mpgrad.shm.arena import Arena
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
arena = Arena(1 << 30)
assert 1 << 30 <= arena.segment.nbytes < 16 << 30, arena.segment.nbytes
arena.empty((1 << 20,), np.uint8).fill(1)
"""


@pytest.mark.slow
def test_a_limited_address_space_is_enough():
    subprocess.run([sys.executable, "-c", LITTLE_ADDRESS_SPACE], check=True)
