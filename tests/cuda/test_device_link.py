"""What the processes of an engine tell each other of their GPUs: verdicts, marks, retired segments.

One process is this one, in the client's role; the others are real ones, in the workers'.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import numpy as np
import pytest

from mpgrad.arrays.cuda import device_roster
from mpgrad.arrays.cuda.cuda_driver import DEVICE_TO_DEVICE, CudaDriver
from mpgrad.arrays.cuda.device_board import DeviceBoard
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.device_memory import DeviceMemory
from mpgrad.arrays.cuda.device_reader import DeviceReader
from mpgrad.arrays.cuda.device_roster import ExporterLost
from mpgrad.arrays.cuda.read_marks import MARKS
from mpgrad.base.handles import CLIENT_DEVICE_ARENA, WORKER_DEVICE_ARENA, Block, TensorHandle
from tests.cuda.fake_driver.driver import FakeCudaDriver
from tests.cuda.peer import Peer

MIB = 1 << 20
ELEMENTS = 4 * MIB

JOIN = f"""
import os
from mpgrad.base.handles import Block, TensorHandle
from mpgrad.arrays.cuda.device_board import DeviceBoard
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.device_memory import DeviceMemory
from mpgrad.arrays.cuda.device_reader import DeviceReader
board = DeviceBoard.attach(os.open(f"/proc/{os.getpid()}/fd/{{fd}}", os.O_RDWR))
memory = DeviceMemory(driver, arena, 0)
driver.set_allocator(memory.exporter.allocate)
link = DeviceLink(driver, board, {{arena: memory.exporter}}, slot)
reader = DeviceReader(driver, link, [memory])
"""


class Client:
    """This process's end."""

    def __init__(self, driver: CudaDriver) -> None:
        self.driver = driver
        self.board = DeviceBoard.create(4, 1 << 20)
        self.memory = DeviceMemory(driver, CLIENT_DEVICE_ARENA, 0)
        driver.set_allocator(self.memory.exporter.allocate)
        self.link = DeviceLink(driver, self.board, {CLIENT_DEVICE_ARENA: self.memory.exporter})
        self.reader = DeviceReader(driver, self.link, [self.memory])

    def ones(self, elements: int = ELEMENTS) -> TensorHandle:
        """A new array that others may read."""
        array = self.driver.namespace.ones(elements, np.float32)
        event = self.memory.begin_submission(self.link)
        found = self.memory.handle(array, self.link, event)
        assert found is not None
        self.array = array
        return found

    def worker(self, peer: Peer, number: int = 0, slot: int = 1) -> int:
        """Have a process take part; the number of its memory."""
        arena = WORKER_DEVICE_ARENA + number
        peer(JOIN, fd=self.board.fd, arena=arena, slot=slot)
        return arena


@pytest.fixture
def client(driver: CudaDriver):
    yield Client(driver)
    driver.set_allocator(None)


class Never:
    """An event that a GPU does not get to."""

    done = False


READ = "seen = reader.open(handle)"


@pytest.mark.ipc
def test_a_pair_that_can_share(client: Client, start_peer: Callable[[], Peer]) -> None:
    assert not client.link.is_shared(CLIENT_DEVICE_ARENA)  # nobody has tried
    peer = start_peer()
    arena = client.worker(peer)
    assert client.link.is_shared(CLIENT_DEVICE_ARENA)
    assert client.link.is_shared(arena)
    assert peer("link.is_shared(arena)")
    assert client.link.failures() == []


@pytest.mark.ipc
def test_one_that_cannot_open_is_enough(client: Client, start_peer: Callable[[], Peer]) -> None:
    client.worker(start_peer())
    peer = start_peer()
    peer("driver.open_ipc_memory = None")
    client.worker(peer, 1, slot=2)
    assert not client.link.is_shared(CLIENT_DEVICE_ARENA)
    (failure,) = [text for text in client.link.failures() if "memory 2 " in text]
    assert "TypeError" in failure
    # Its successor can: the dead one's word counts no more.
    client.worker(start_peer(), 2, slot=2)
    assert client.link.is_shared(CLIENT_DEVICE_ARENA)


@pytest.mark.parametrize("has_peer_access", [True, False])
def test_memory_of_another_gpu_is_reached_directly_where_it_can_be(has_peer_access: bool) -> None:
    client, peer = Client(FakeCudaDriver(2, has_peer_access=has_peer_access)), Peer("fake")
    peer(JOIN.replace("arena, 0", "arena, 1"), fd=client.board.fd, arena=2000, slot=1)
    client.link.look()
    assert client.link.is_shared(2000)
    assert client.driver.reachable == ({(0, 1)} if has_peer_access else set())
    peer.kill()


def test_who_cannot_export_says_so() -> None:
    client = Client(FakeCudaDriver(1, can_share=False))
    assert not client.link.is_shared(CLIENT_DEVICE_ARENA)
    assert "cannot export" in client.link.failures()[0]


def test_without_elements_there_is_nothing_to_export() -> None:
    client = Client(FakeCudaDriver(1, can_share=False))
    empty = client.driver.namespace.zeros((0, 3), np.float32)
    block = client.memory.publish(empty, client.link)
    client.memory.mark()
    assert client.reader.copy(block, (0, 3), np.float32).shape == (0, 3)


@pytest.mark.ipc
def test_an_idle_segment_is_freed_when_all_have_closed_it(
    client: Client, start_peer: Callable[[], Peer]
) -> None:
    peer = start_peer()
    client.worker(peer)
    handle = client.ones()
    peer(READ, handle=handle)
    held = client.memory.exporter.held_bytes
    client.link.give_back()
    assert client.memory.exporter.held_bytes == held  # in use here
    del client.array
    client.link.give_back()
    assert client.memory.exporter.held_bytes == held  # open there
    peer("link.look()")
    client.link.look()
    assert client.memory.exporter.held_bytes == held  # in use there
    peer("del seen")
    peer("link.look()")
    client.link.look()
    assert client.memory.exporter.held_bytes == held - ELEMENTS * 4


def test_a_shortage_is_heard_by_others(client: Client, start_peer: Callable[[], Peer]) -> None:
    peer = start_peer()
    client.worker(peer)
    peer("array = driver.namespace.ones(1 << 22, np.float32)")
    before = peer("memory.exporter.held_bytes")
    peer("del array")
    peer("link.look()")
    assert peer("memory.exporter.held_bytes") == before
    client.board.note_shortage()
    peer("link.look()")
    assert peer("memory.exporter.held_bytes") == before - (4 << 22)


@pytest.mark.ipc
def test_a_segment_that_a_dead_process_had_open(
    client: Client, start_peer: Callable[[], Peer]
) -> None:
    peer = start_peer()
    client.worker(peer)
    peer(READ, handle=client.ones())
    held = client.memory.exporter.held_bytes
    del client.array
    client.link.give_back()
    peer.kill()
    client.worker(start_peer(), 1)
    client.link.look()
    assert client.memory.exporter.held_bytes == held - ELEMENTS * 4


@pytest.mark.ipc
def test_a_dead_process_is_no_proof_against_ipc(
    client: Client, start_peer: Callable[[], Peer]
) -> None:
    peer = start_peer()
    client.worker(peer)
    peer.kill()
    client.link.look()
    assert client.link.failures() == []


@pytest.mark.ipc
def test_what_a_dead_process_exported_is_closed(
    client: Client, start_peer: Callable[[], Peer]
) -> None:
    peer = start_peer()
    client.worker(peer)
    client.link.look()
    assert client.link.importer.open_count == 1  # the self-test's
    peer.kill()
    client.worker(start_peer(), 1)
    client.link.look()
    assert [name for name, _ in client.link.importer.opened()] == [str(WORKER_DEVICE_ARENA + 1)]


def test_memory_waits_for_who_still_reads_it() -> None:
    """On the fake, whose streams do not run before somebody asks."""
    client, peer = Client(FakeCudaDriver(2)), Peer("fake")
    client.worker(peer)
    client.link.look()
    block = client.memory.publish(client.driver.namespace.ones(ELEMENTS, np.float32), client.link)
    client.memory.mark()
    copy = f"copy = reader.copy(Block{tuple(block)}, ({ELEMENTS},), np.float32)"
    peer(copy)
    peer("reader.finish_reads(arena)")
    used = client.memory.exporter.used_bytes
    client.link.leave(client.memory.release(block))
    client.link.reclaim()
    assert client.memory.exporter.used_bytes == used  # the copy has not run
    peer("driver.current_stream().synchronize()")
    client.link.reclaim()
    assert client.memory.exporter.used_bytes == used - ELEMENTS * 4
    peer.kill()


def test_where_memory_is_short_what_others_read_is_waited_for() -> None:
    """There is room for two such arrays: the third waits until the first has been read."""
    client, peer = Client(FakeCudaDriver(1, total_bytes=3 * ELEMENTS * 4)), Peer("fake")
    client.worker(peer)
    client.link.look()
    for _ in range(4):
        peer(READ, handle=client.ones())
        peer("total = seen.sum(); del seen")
        peer("reader.finish_reads(arena)")
        client.link.leave([client.array])
        del client.array
    assert client.memory.exporter.held_bytes <= 3 * ELEMENTS * 4
    peer.kill()


@pytest.mark.ipc
def test_an_event_that_was_recorded_anew_is_waited_for_anew(
    client: Client, start_peer: Callable[[], Peer]
) -> None:
    peer, events = start_peer(), set()
    client.worker(peer)
    for value in (1.0, 2.0):
        source = client.driver.namespace.full(ELEMENTS, value, np.float32)
        client.array = client.driver.namespace.zeros(ELEMENTS, np.float32)
        client.driver.synchronize()
        pointers = client.driver.pointer(client.array), client.driver.pointer(source)
        client.driver.copy(*pointers, source.nbytes, DEVICE_TO_DEVICE)  # which runs late
        event = client.memory.begin_submission(client.link)
        handle = client.memory.handle(client.array, client.link, event)
        for _ in range(2):  # two saved tensors of one task
            assert peer("float(reader.open(handle)[-1])", handle=handle) == value
        peer("reader.finish_reads(arena)")
        client.memory.end_submission(event)
        events.add(event)
    assert len(events) == 1


@pytest.mark.ipc
def test_marks_go_round(client: Client, start_peer: Callable[[], Peer]) -> None:
    peer = start_peer()
    client.worker(peer)
    before = client.memory.exporter.used_bytes
    for number in range(2 * MARKS + 3):
        peer(READ, handle=client.ones(1000))
        peer("total = float(seen.sum().get())" if number % 7 == 0 else "total = seen.sum()")
        peer("reader.finish_reads(arena)")
        client.link.leave([client.array])
    client.link.reclaim(is_urgent=True)
    del client.array
    assert client.memory.exporter.used_bytes == before


@pytest.mark.ipc
def test_the_dead_read_nothing(client: Client, start_peer: Callable[[], Peer]) -> None:
    peer = start_peer()
    client.worker(peer)
    peer(READ, handle=client.ones())
    peer("reader.finish_reads(arena)")
    client.link.leave([client.array])
    del client.array
    used = client.memory.exporter.used_bytes
    peer.kill()
    client.link.reclaim()
    assert client.memory.exporter.used_bytes == used - ELEMENTS * 4


def test_the_death_of_a_worker_breaks_no_stream_of_the_client() -> None:
    """Its GPU never got to the event: who waits for that on the device waits for ever."""
    client, peer = Client(FakeCudaDriver(1)), Peer("fake")
    client.worker(peer)
    client.link.look()
    peer("block = memory.publish(driver.namespace.zeros(4, np.float32), link); memory.mark()")
    block = Block(*peer("tuple(block)"))
    with pytest.raises(TimeoutError, match="not done within"):
        client.link.roster.wait_here(block.arena, Never(), 1e-9)
    peer.kill()
    with pytest.raises(ExporterLost, match="is dead"):
        client.link.roster.wait_here(block.arena, Never())
    assert client.driver.namespace.ones(3, np.float32).get().tolist() == [1, 1, 1]


def test_the_death_of_a_third_process_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one's GPU may wait for it in vain; without that death it has all the time."""
    monkeypatch.setattr(device_roster, "_GRACE_S", 0.0)
    client, second, third = Client(FakeCudaDriver(1)), Peer("fake"), Peer("fake")
    arena = client.worker(second)
    client.worker(third, 1, slot=2)
    client.link.look()
    with pytest.raises(TimeoutError):
        client.link.roster.wait_here(arena, Never(), 1e-9)
    third.kill()
    with pytest.raises(ExporterLost, match="makes no progress"):
        client.link.roster.wait_here(arena, Never())
    second.kill()


def test_what_went_through_the_host_is_read_before_the_next_process_writes_there() -> None:
    """The streams of the fake run late: a copy that nobody waits for reads what is there then."""
    client, peer = Client(FakeCudaDriver(1, can_open=False)), Peer("fake")
    first = client.worker(peer)
    client.link.look()
    assert not client.link.is_shared(first)
    publish = "block = memory.publish(driver.namespace.full((4,), {}, np.float32), link)"
    peer(publish.format(7))
    peer("memory.mark()")
    block = Block(*peer("tuple(block)"))
    copy = client.reader.copy(block, (4,), np.float32)
    peer.kill()
    peer = Peer("fake")
    client.worker(peer, 1)
    client.link.look()
    peer(publish.format(9))
    peer("memory.mark()")
    assert Block(*peer("tuple(block)")).offset == block.offset
    assert copy.get().tolist() == [7] * 4
    with pytest.raises(ExporterLost, match="replaced"):
        client.reader.copy(block, (4,), np.float32)
    peer.kill()


def test_a_self_test_that_nobody_took_writes_nothing_after_its_end() -> None:
    """Its copy ran after its memory had become the user's: wrong gradients in the next engine."""
    client = Client(FakeCudaDriver(1))
    client.link.close()
    del client.link, client.reader
    gc.collect()
    user = [client.driver.namespace.full(1 << 16, n, np.int32) for n in range(2)]
    client.driver.synchronize()
    assert [int(array[0].get()) for array in user] == [0, 1]


def test_copies_wait_for_no_host() -> None:
    """A gradient of a worker is copied, and this process goes on: the copy has not run."""
    client, peer = Client(FakeCudaDriver(1)), Peer("fake")
    client.worker(peer)
    client.link.look()
    peer("block = memory.publish(driver.namespace.full((4,), 7, np.float32), link)")
    peer("memory.mark()")
    block = Block(*peer("tuple(block)"))
    copy = client.reader.copy(block, (4,), np.float32)
    assert not client.driver.current_stream().done
    assert copy.get().tolist() == [7] * 4
    peer.kill()
