"""The start-up self-test of two processes, and the way round where it fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from mpgrad.errors import ProtocolError
from mpgrad.handles import Block
from mpgrad.shm.cuda_driver import DEVICE_TO_DEVICE, CudaDriver
from mpgrad.shm.cuda_export import Exporter, NotExportable
from mpgrad.shm.pair_test import PairTest
from mpgrad.shm.pinned_arena import PinnedArena
from mpgrad.shm.segment import Segment
from mpgrad.testing.fake_cuda import FakeCudaDriver
from tests.cuda.peer import Peer

IMPORTS = (
    "from mpgrad.shm.cuda_import import Importer; from mpgrad.shm.pair_test import *; "
    "from mpgrad.shm.cuda_export import SegmentOffer; from mpgrad.shm.segment_pool import Place"
)


def asked(peer: Peer, test: PairTest):
    peer(IMPORTS)
    peer("importer = Importer(driver)")
    question = test.question
    peer("found = answer(driver, importer, 'w1.1', question)", question=question)
    return peer("found")


def test_a_pair_that_works(driver: CudaDriver, start_peer: Callable[[], Peer]) -> None:
    test = PairTest(driver, Exporter(driver, "w0.1", 0), "w1.1", seed=5)
    found = asked(start_peer(), test)
    assert found.works, found.reason


def test_wrong_bytes_are_found(driver: CudaDriver, start_peer: Callable[[], Peer]) -> None:
    test = PairTest(driver, Exporter(driver, "w0.1", 0), "w1.1", seed=5)
    test.question = test.question._replace(seed=6)
    found = asked(start_peer(), test)
    assert not found.works
    assert "not those that were written" in found.reason


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


def test_through_pinned_memory(driver: CudaDriver) -> None:
    segment = Segment.create(1 << 20, "test-pinned")
    here = PinnedArena(driver, segment, 7, is_owner=True)
    there = PinnedArena(driver, Segment.attach(os.dup(segment.fd)), 7, is_owner=False)
    source = driver.namespace.asarray(np.arange(1000, dtype=np.float32))
    down, up = driver.stream(), driver.stream()
    driver.synchronize()
    block = here.put(source, down)
    # The copy is under way: whoever reads must wait for its event, here as on the device.
    event = driver.event()
    event.record(down)
    up.wait_event(event)
    target = driver.namespace.zeros(1000, np.float32)
    driver.synchronize()
    there.get(block, target, up)
    up.synchronize()
    assert driver.namespace.asnumpy(target).tolist() == list(range(1000))
    assert there.view(block, np.float32)[-1] == 999
    here.free(block)
    assert here.put(source, down).offset == block.offset
    down.synchronize()
    with pytest.raises(ProtocolError, match="does not fit"):
        there.get(Block(7, 1 << 20, 4000, 1), target, up)
    with pytest.raises(ValueError, match="owner"):
        there.put(source, up)
    here.close()
    there.close()


def test_a_reader_that_does_not_wait_is_seen() -> None:
    driver = FakeCudaDriver(1)
    arena = PinnedArena(driver, Segment.create(1 << 20, "test-pinned"), 7, is_owner=True)
    pointer = driver.malloc(4096)
    driver.copy(pointer, pointer, 16, DEVICE_TO_DEVICE)
    array = driver.array(pointer, (4,), np.float32)
    array.set(np.full(4, 2, np.float32))
    stream = driver.stream()
    block = arena.put(array, stream)
    assert arena.view(block, np.float32).tolist() == [0] * 4
    stream.synchronize()
    assert arena.view(block, np.float32).tolist() == [2] * 4
