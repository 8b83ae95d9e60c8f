"""What the fake CUDA driver finds and a GPU does not: each broken rule is an error or wrong bytes.

These tests keep the fake honest, as planted bugs do the simulation.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mpgrad.arrays.cuda.cuda_driver import DEVICE_TO_DEVICE, HOST_TO_DEVICE, CudaError
from tests.cuda.conftest import Peer
from tests.cuda.fake_driver.driver import FakeCudaDriver
from tests.cuda.fake_driver.streams import Operation
from tests.cuda.test_cuda_driver import MIB, to_device, to_host


@pytest.fixture
def fake() -> FakeCudaDriver:
    return FakeCudaDriver(2)


@pytest.fixture
def peer():
    peer = Peer("fake")
    yield peer
    peer.kill()


def test_without_a_wait_the_old_bytes_are_read(fake: FakeCudaDriver) -> None:
    source, between = to_device(fake, np.ones(4, np.float32)), fake.malloc(2 * MIB)
    target = to_device(fake, np.full(4, -1, np.float32))
    first, second = fake.stream(), fake.stream()
    fake.copy(between, source, 16, DEVICE_TO_DEVICE, first)
    fake.copy(target, between, 16, DEVICE_TO_DEVICE, second)
    second.synchronize()
    first.synchronize()
    assert to_host(fake, target, 4) == [0] * 4


def test_without_a_wait_another_process_reads_the_old_bytes(
    fake: FakeCudaDriver, peer: Peer
) -> None:
    source = to_device(fake, np.ones(4, np.float32))
    target = to_device(fake, np.zeros(4, np.float32))
    stream, event = fake.stream(), fake.event(interprocess=True)
    fake.copy(target, source, 16, DEVICE_TO_DEVICE, stream)
    event.record(stream)
    peer("pointer = driver.open_ipc_memory(memory)", memory=fake.ipc_memory_handle(target))
    assert peer("driver.array(pointer, (4,), np.float32).get().tolist()") == [0] * 4
    peer("event = driver.open_ipc_event(handle)", handle=fake.ipc_event_handle(event))
    # Asking moves the GPU on, one operation at a time: the copy, then the mark.
    assert [peer("event.done"), peer("event.done")] == [False, True]
    assert peer("driver.array(pointer, (4,), np.float32).get().tolist()") == [1] * 4


def test_a_wait_captures_the_event_as_it_was(fake: FakeCudaDriver) -> None:
    first, second, event = fake.stream(), fake.stream(), fake.event()
    source, target = to_device(fake, np.ones(4, np.float32)), fake.malloc(2 * MIB)
    event.record(first)
    second.wait_event(event)
    fake.copy(target, source, 16, DEVICE_TO_DEVICE, first)
    event.record(first)  # the wait before does not see it
    second.synchronize()
    assert not first.done
    assert event.done


def test_pinned_memory_is_read_when_the_copy_runs(fake: FakeCudaDriver) -> None:
    host, pointer = np.ones(4, np.float32), fake.malloc(2 * MIB)
    fake.host_register(host.ctypes.data, host.nbytes)
    fake.copy(pointer, host.ctypes.data, 16, HOST_TO_DEVICE)
    host[:] = 2
    assert to_host(fake, pointer, 4) == [2] * 4


def test_opening_twice_and_freeing_what_is_open(fake: FakeCudaDriver, peer: Peer) -> None:
    pointer = fake.malloc(2 * MIB)
    handle = fake.ipc_memory_handle(pointer)
    peer("pointer = driver.open_ipc_memory(handle)", handle=handle)
    with pytest.raises(CudaError, match="AlreadyMapped"):
        peer("driver.open_ipc_memory(handle)")
    with pytest.raises(CudaError, match="another process has it open"):
        fake.free(pointer)
    peer("driver.close_ipc_memory(pointer)")
    fake.free(pointer)
    with pytest.raises(CudaError, match="InvalidResourceHandle"):
        peer("driver.open_ipc_memory(handle)")


def test_a_killed_importer_holds_nothing(fake: FakeCudaDriver, peer: Peer) -> None:
    pointer = fake.malloc(2 * MIB)
    peer("p = driver.open_ipc_memory(handle)", handle=fake.ipc_memory_handle(pointer))
    peer.kill()
    fake.free(pointer)


def test_a_killed_exporter_is_an_error_for_who_waits(fake: FakeCudaDriver, peer: Peer) -> None:
    memory = peer("pointer = driver.malloc(2 << 20)") or peer("driver.ipc_memory_handle(pointer)")
    peer("event = driver.event(interprocess=True)")
    event = fake.open_ipc_event(peer("driver.ipc_event_handle(event)"))
    peer("array = driver.array(pointer, (4,), np.float32)")
    peer("driver.copy(pointer + 16, pointer, 16, DEVICE_TO_DEVICE)")
    peer("event.record()")
    stream = fake.stream()
    stream.wait_event(event)
    peer.kill()
    with pytest.raises(CudaError, match="IllegalAddress"):
        stream.synchronize()
    with pytest.raises(CudaError, match="InvalidResourceHandle"):
        fake.open_ipc_memory(memory)


def test_closing_what_a_stream_still_uses(fake: FakeCudaDriver, peer: Peer) -> None:
    handle = peer("p = driver.malloc(2 << 20)") or peer("driver.ipc_memory_handle(p)")
    imported, target, stream = fake.open_ipc_memory(handle), fake.malloc(2 * MIB), fake.stream()
    fake.copy(target, imported, 16, DEVICE_TO_DEVICE, stream)
    with pytest.raises(CudaError, match="still uses it"):
        fake.close_ipc_memory(imported)
    stream.synchronize()
    fake.close_ipc_memory(imported)


def test_an_event_that_its_process_destroyed(fake: FakeCudaDriver, peer: Peer) -> None:
    peer("event = driver.event(interprocess=True)")
    event = fake.open_ipc_event(peer("driver.ipc_event_handle(event)"))
    peer("event.record(); del event")
    with pytest.raises(CudaError, match="destroyed"):
        event.synchronize()


def test_memory_of_the_librarys_own_pool_cannot_be_exported(fake: FakeCudaDriver) -> None:
    array = fake.namespace.zeros(8)
    with pytest.raises(CudaError, match="InvalidValue"):
        fake.ipc_memory_handle(fake.pointer(array))


def test_arrays_belong_to_their_device(fake: FakeCudaDriver) -> None:
    with fake.device(1):
        array = fake.namespace.zeros(8)
        assert array.device.id == 1
    with pytest.raises(ValueError, match="current device"):
        array + 1


def test_memory_ends() -> None:
    fake = FakeCudaDriver(2, total_bytes=8 * MIB)
    pointer = fake.malloc(4 * MIB)
    assert fake.memory_info(0) == (4 * MIB, 8 * MIB)
    assert fake.memory_info(1) == (8 * MIB, 8 * MIB)
    with pytest.raises(CudaError, match="cudaErrorMemoryAllocation"):
        fake.malloc(5 * MIB)
    fake.array(pointer, (4,), np.float32)
    with pytest.raises(CudaError, match="no device memory"):
        fake.array(pointer + 4 * MIB - 8, (4,), np.float32)


def test_functions_give_numpys_bits(fake: FakeCudaDriver) -> None:
    host = np.random.default_rng(0).normal(size=(33, 17)).astype(np.float32)
    array = fake.namespace.asarray(host.T)
    assert array.strides == host.T.strides
    for function in (np.exp, np.sum, lambda x: x @ x.T, lambda x: x[::2].mean(axis=0)):
        assert function(array).get().tobytes() == function(host.T).tobytes()
    out = fake.namespace.empty_like(array)
    assert fake.namespace.exp(array, out=out) is out


def test_threads_that_run_streams_which_wait_for_each_other(fake: FakeCudaDriver) -> None:
    """The first thread is past the mark that the second one waits for, and waits for him."""
    first, second = fake.stream(), fake.stream()
    early, late = fake.event(), fake.event()
    is_under_way, may_go_on = threading.Event(), threading.Event()
    first.put(Operation(lambda: (is_under_way.set(), may_go_on.wait())))
    early.record(first)
    second.put(Operation(may_go_on.set))
    second.wait_event(early)
    late.record(second)
    first.wait_event(late)
    threads = [threading.Thread(target=s.synchronize, daemon=True) for s in (first, second)]
    threads[0].start()
    is_under_way.wait()
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert early.done
    assert late.done


def test_a_stream_that_waits_for_itself(fake: FakeCudaDriver) -> None:
    stream, event = fake.stream(), fake.event()
    stream.put(Operation(lambda: event.wait_for(1)))
    event.record(stream)
    with pytest.raises(CudaError, match="waits for itself"):
        stream.synchronize()
