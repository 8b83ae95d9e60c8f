"""The contract of shared device memory, on the fake driver and (``-m gpu``) on a real GPU.

Opened once, never in the exporter, freed after the last importer has closed it or has died.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import numpy as np
import pytest

from mpgrad.arrays.cuda.cuda_driver import CudaDriver, CudaError
from mpgrad.arrays.cuda.cuda_export import Exporter, NotExportable, SegmentOffer
from mpgrad.arrays.cuda.cuda_import import Importer
from mpgrad.arrays.cuda.device_board import EVENT, DeviceBoard, Row
from mpgrad.arrays.cuda.device_link import DeviceLink
from mpgrad.arrays.cuda.device_memory import NO_EVENT, DeviceMemory
from mpgrad.arrays.cuda.event_ring import EVENTS, EventRing, OpenedEvents
from mpgrad.arrays.cuda.segment_pool import SegmentPlace
from mpgrad.errors import InvariantViolated, ProtocolError
from tests.cuda.fake_driver.driver import FakeCudaDriver
from tests.cuda.peer import Peer

StartPeer = Callable[[], Peer]

IMPORTS = (
    "import os\n"
    "from mpgrad.arrays.cuda.cuda_export import *\n"
    "from mpgrad.arrays.cuda.cuda_import import *\n"
    "from mpgrad.arrays.cuda.event_ring import *\n"
    "from mpgrad.arrays.cuda.segment_pool import SegmentPlace as Place"
)


@pytest.fixture
def exporter(driver: CudaDriver) -> Exporter:
    return Exporter(driver, "w0.1", 0)


@pytest.fixture
def importer(start_peer: StartPeer) -> Peer:
    peer = start_peer()
    peer(IMPORTS)
    peer("importer = Importer(driver)")
    return peer


def new_array(driver: CudaDriver, exporter: Exporter, values: np.ndarray):
    """A device array in the exporter's memory, and its place."""
    pointer, lease = exporter.allocate(values.nbytes)
    array = driver.array(pointer, values.shape, values.dtype, owner=lease)
    array.set(values)
    place = exporter.locate(pointer, values.nbytes)
    assert place is not None
    return array, place


def path_of(board: DeviceBoard) -> str:
    """Where another process finds it."""
    return f"/proc/{os.getpid()}/fd/{board.fd}"


def read_there(peer: Peer, place: SegmentPlace, n: int) -> list[float]:
    peer(f"array = importer.array('w0.1', 0, {place!r}, ({n},), np.float32, {4 * n})")
    values = peer("array.get().tolist()")
    peer("del array")
    return values


# ------------------------------------------------------------------------ sharing


@pytest.mark.ipc
def test_a_segment_is_opened_once_for_all_tensors_in_it(
    driver: CudaDriver, exporter: Exporter, importer: Peer
) -> None:
    kept = [new_array(driver, exporter, np.full(4, n, np.float32)) for n in range(3)]
    driver.synchronize()
    for number, (_, place) in enumerate(kept):
        offer = exporter.offer(place.segment, "w1.1")
        importer("importer.open(offer)", offer=offer)
        assert read_there(importer, place, 4) == [number] * 4
    assert importer("importer.open_count") == 1


@pytest.mark.ipc
def test_what_is_written_there_is_seen_here(
    driver: CudaDriver, exporter: Exporter, importer: Peer
) -> None:
    array, place = new_array(driver, exporter, np.ones(4, np.float32))
    driver.synchronize()
    importer("importer.open(offer)", offer=exporter.offer(place.segment, "w1.1"))
    importer(f"array = importer.array('w0.1', 0, {place!r}, (4,), np.float32, 16)")
    importer("array *= 3; driver.synchronize()")
    assert array.get().tolist() == [3] * 4


def test_ones_own_references_are_never_opened(driver: CudaDriver, exporter: Exporter) -> None:
    array, place = new_array(driver, exporter, np.arange(4, dtype=np.float32))
    importer = Importer(driver, [exporter])
    importer.open(SegmentOffer("w0.1", place.segment, 2 << 20, 0, b"never looked at"))
    again = importer.array("w0.1", 0, place, (4,), np.float32, 16)
    assert driver.pointer(again) == driver.pointer(array)
    assert importer.open_count == 0
    with pytest.raises(InvariantViolated, match="its own segment"):
        exporter.offer(place.segment, "w0.1")


@pytest.mark.ipc
def test_an_unknown_place_is_refused(
    driver: CudaDriver, exporter: Exporter, importer: Peer
) -> None:
    _, place = new_array(driver, exporter, np.ones(4, np.float32))
    with pytest.raises(NotExportable, match="not open here"):
        importer(f"importer.array('w0.1', 0, {place!r}, (4,), np.float32, 16)")
    importer("importer.open(offer)", offer=exporter.offer(place.segment, "w1.1"))
    with pytest.raises(NotExportable, match="leave the segment"):
        importer(f"importer.array('w0.1', 0, Place({place.segment}, 2 << 20), (4,), 'f4', 16)")
    with pytest.raises(NotExportable, match="no segment 7"):
        exporter.offer(7, "w1.1")


def test_memory_of_others_is_not_located(driver: CudaDriver, exporter: Exporter) -> None:
    foreign = driver.malloc(2 << 20)
    assert exporter.locate(foreign, 16) is None
    driver.free(foreign)


def test_where_handles_are_forbidden_it_says_so() -> None:
    driver = FakeCudaDriver(1, can_share=False)
    exporter = Exporter(driver, "w0.1", 0)
    _, place = new_array(driver, exporter, np.ones(4, np.float32))
    with pytest.raises(NotExportable, match="cannot export"):
        exporter.offer(place.segment, "w1.1")


def test_only_the_device_thread_opens_and_closes(driver: CudaDriver) -> None:
    importer, errors = Importer(driver), []

    def elsewhere() -> None:
        try:
            importer.close_retired()
        except InvariantViolated as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "device thread" in errors[0]


# ------------------------------------------------------------------------ the way out


@pytest.mark.ipc
def test_a_segment_goes_after_its_importer_has_closed_it(
    driver: CudaDriver, exporter: Exporter, importer: Peer
) -> None:
    array, place = new_array(driver, exporter, np.ones(4, np.float32))
    driver.synchronize()
    importer("importer.open(offer)", offer=exporter.offer(place.segment, "w1.1"))
    importer(f"array = importer.array('w0.1', 0, {place!r}, (4,), np.float32, 16)")
    assert exporter.retire_idle() == []  # in use here
    del array
    gc.collect()
    assert exporter.retire_idle() == [(place.segment, ("w1.1",))]
    assert exporter.retire_idle() == []  # once
    with pytest.raises(NotExportable):
        exporter.offer(place.segment, "w2.1")
    importer("importer.retire('w0.1', segment)", segment=place.segment)
    assert importer("importer.close_retired()") == []  # in use there
    assert exporter.held_bytes == 2 << 20
    importer("del array; import gc; gc.collect()")
    assert importer("importer.close_retired()") == [("w0.1", place.segment)]
    exporter.closed(place.segment, "w1.1")
    assert exporter.held_bytes == 0
    with pytest.raises(InvariantViolated, match="was not asked"):
        exporter.closed(place.segment, "w1.1")


def test_a_segment_that_nobody_was_offered_goes_at_once(
    driver: CudaDriver, exporter: Exporter
) -> None:
    array, _ = new_array(driver, exporter, np.ones(4, np.float32))
    del array
    gc.collect()
    assert exporter.retire_idle() == []
    assert exporter.held_bytes == 0


@pytest.mark.ipc
def test_a_killed_importer_holds_nothing_back(
    driver: CudaDriver, exporter: Exporter, importer: Peer
) -> None:
    array, place = new_array(driver, exporter, np.ones(4, np.float32))
    importer("importer.open(offer)", offer=exporter.offer(place.segment, "w1.1"))
    del array
    gc.collect()
    exporter.retire_idle()
    importer.kill()
    exporter.peer_lost("w1.1")
    assert exporter.held_bytes == 0


@pytest.mark.ipc
def test_a_killed_exporter_is_closed_once_nothing_reads_it(
    driver: CudaDriver, importer: Peer
) -> None:
    importer("exporter = Exporter(driver, 'w0.1', 0)")
    importer("pointer, lease = exporter.allocate(16)")
    offer = importer("exporter.offer(0, 'w1.1')")
    here = Importer(driver)
    here.open(offer)
    array = here.array("w0.1", 0, SegmentPlace(0, 0), (4,), np.float32, 16)
    importer.kill()
    here.exporter_lost("w0.1")
    with pytest.raises(NotExportable, match="not open"):
        here.array("w0.1", 0, SegmentPlace(0, 0), (4,), np.float32, 16)
    assert here.close_retired() == []
    del array
    gc.collect()
    assert here.close_retired() == [("w0.1", 0)]
    assert here.open_count == 0


def test_when_the_device_is_full_idle_segments_are_given_back() -> None:
    driver = FakeCudaDriver(1, total_bytes=32 << 20)
    exporter = Exporter(driver, "w0.1", 0)
    _, lease = exporter.allocate(30 << 20)
    with driver.stream():
        with pytest.raises(CudaError, match="out of memory"):
            exporter.allocate(16 << 20)
        del lease
        gc.collect()
        exporter.allocate(16 << 20)
    assert exporter.held_bytes == 16 << 20


# ------------------------------------------------------------------------ events


@pytest.mark.ipc
def test_streams_of_two_processes_in_order(
    driver: CudaDriver, exporter: Exporter, importer: Peer
) -> None:
    ring, board = EventRing(driver, 4), DeviceBoard.create()
    board.put(*(Row(EVENT, 7, n, 0, 0, handle) for n, handle in enumerate(ring.handles())))
    source, _ = new_array(driver, exporter, np.full(4, 9, np.float32))
    target, place = new_array(driver, exporter, np.zeros(4, np.float32))
    driver.synchronize()
    importer("importer.open(offer)", offer=exporter.offer(place.segment, "w1.1"))
    importer("from mpgrad.arrays.cuda.device_board import DeviceBoard")
    importer("board = DeviceBoard.attach(os.open(path, os.O_RDWR))", path=path_of(board))
    importer("events = OpenedEvents(driver, board)")
    stream = driver.stream()
    driver.copy(driver.pointer(target), driver.pointer(source), 16, 3, stream)
    number = ring.reserve()
    ring.record(number, stream)
    importer("event = events.find(7, number)", number=number)
    importer("driver.current_stream().wait_event(event)")
    assert importer("events.find(7, number) is event")
    assert read_there(importer, place, 4) == [9] * 4
    ring.waited(number)
    assert ring.free_count == 4


@pytest.mark.row("N3")
def test_an_event_is_not_recorded_again_before_all_have_waited(driver: CudaDriver) -> None:
    ring, stream = EventRing(driver, 2), driver.stream()
    first, second = ring.reserve(), ring.reserve()
    assert {first, second} == {0, 1}
    ring.share(first)
    ring.record(first, stream)
    assert ring.reserve() is None  # none is free
    ring.waited(first)
    assert ring.reserve() is None
    ring.waited(first)
    assert ring.reserve() == first
    ring.waited(second)
    for use in (ring.waited, ring.share, lambda number: ring.record(number, stream)):
        with pytest.raises(InvariantViolated, match="it has no waiter"):
            use(second)


def test_where_no_event_is_free_the_maker_waits(driver: CudaDriver) -> None:
    memory, link = DeviceMemory(driver, 7, 0), DeviceLink(driver, DeviceBoard.create(), {})
    events = [memory.begin_submission(link) for _ in range(EVENTS + 1)]
    assert events[-1] == NO_EVENT
    assert len(set(events)) == EVENTS + 1
    memory.end_submission(events[5])
    assert memory.begin_submission(link) == events[5]


def test_an_event_that_nobody_has_shown(driver: CudaDriver) -> None:
    with pytest.raises(ProtocolError, match="event 3 of memory 7"):
        OpenedEvents(driver, DeviceBoard.create()).find(7, 3)
