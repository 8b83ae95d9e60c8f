"""The start-up self-test of two processes, and the way round where it fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from mpgrad.arrays.cuda import pinned_arena
from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.arrays.cuda.cuda_export import Exporter, NotExportable
from mpgrad.arrays.cuda.pair_test import PairTest
from mpgrad.arrays.cuda.pinned_arena import PinnedArena
from mpgrad.errors import ProtocolError, SharedMemoryExhausted
from mpgrad.shm.segment import Segment
from tests.cuda.fake_driver.driver import FakeCudaDriver
from tests.cuda.peer import Peer

IMPORTS = (
    "from mpgrad.arrays.cuda.cuda_import import Importer\n"
    "from mpgrad.arrays.cuda.pair_test import *\n"
    "from mpgrad.arrays.cuda.cuda_export import SegmentOffer\n"
    "from mpgrad.arrays.cuda.segment_pool import SegmentPlace as Place"
)


def asked(peer: Peer, test: PairTest):
    peer(IMPORTS)
    peer("importer = Importer(driver)")
    question = test.question
    peer("found = answer(driver, importer, 'w1.1', question)", question=question)
    return peer("found")


@pytest.mark.ipc
def test_a_pair_that_works(driver: CudaDriver, start_peer: Callable[[], Peer]) -> None:
    test = PairTest(driver, Exporter(driver, "w0.1", 0), "w1.1", seed=5)
    found = asked(start_peer(), test)
    assert found.works, found.reason


@pytest.mark.ipc
def test_wrong_bytes_are_found(driver: CudaDriver, start_peer: Callable[[], Peer]) -> None:
    test = PairTest(driver, Exporter(driver, "w0.1", 0), "w1.1", seed=5)
    test.question = test.question._replace(seed=6)
    found = asked(start_peer(), test)
    assert not found.works
    assert "not those that were written" in found.reason


@pytest.mark.ipc
def test_a_dead_exporter_is_an_answer_too(
    driver: CudaDriver, start_peer: Callable[[], Peer]
) -> None:
    test = PairTest(driver, Exporter(driver, "w0.1", 0), "w1.1", seed=5)
    test.question = test.question._replace(event=b"\0" * 64)
    assert "CudaError" in asked(start_peer(), test).reason


def test_who_cannot_export_finds_out_before_asking() -> None:
    driver = FakeCudaDriver(1, can_share=False)
    with pytest.raises(NotExportable, match="cannot export"):
        PairTest(driver, Exporter(driver, "w0.1", 0), "w1.1", seed=0)


def test_through_pinned_memory(driver: CudaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_arena, "PIECE_BYTES", 1 << 13)
    segment, page = Segment.create(1 << 20, "test-pinned"), 4096
    here = PinnedArena(driver, segment, page, 1 << 16, is_owner=True)
    there = PinnedArena(driver, Segment.attach(os.dup(segment.fd)), page, 1 << 16, is_owner=False)
    # More than one pinned piece: a copy may not touch two.
    source = driver.namespace.asarray(np.arange(5000, dtype=np.float32))
    down, up = driver.stream(), driver.stream()
    driver.synchronize()
    offset = here.put(driver.pointer(source), source.nbytes, down)
    # The copy is under way: whoever reads must wait for its event, here as on the device.
    event = driver.event()
    event.record(down)
    up.wait_event(event)
    target = driver.namespace.zeros(5000, np.float32)
    driver.synchronize()
    there.get(offset, driver.pointer(target), target.nbytes, up)
    up.synchronize()
    assert driver.namespace.asnumpy(target).tolist() == list(range(5000))
    here.free(offset)
    assert here.put(driver.pointer(source), source.nbytes, down) == offset
    down.synchronize()
    with pytest.raises(ProtocolError, match="do not fit"):
        there.get(1 << 16, driver.pointer(target), 4000, up)
    with pytest.raises(ValueError, match="owner"):
        there.put(driver.pointer(source), 4, up)
    with pytest.raises(SharedMemoryExhausted):
        here.put(driver.pointer(source), 1 << 16, down)
    here.close()
    there.close()


def test_a_reader_that_does_not_wait_is_seen() -> None:
    driver, segment = FakeCudaDriver(1), Segment.create(1 << 20, "test-pinned")
    arena = PinnedArena(driver, segment, 0, 1 << 20, is_owner=True)
    pointer = driver.malloc(4096)
    array = driver.array(pointer, (4,), np.float32)
    array.set(np.full(4, 2, np.float32))
    stream = driver.stream()
    offset = arena.put(pointer, 16, stream)
    view = np.frombuffer(segment.buffer, np.float32, 4, offset)
    assert view.tolist() == [0] * 4
    stream.synchronize()
    assert view.tolist() == [2] * 4
