"""The contract of a CUDA driver: the fake keeps it here, the real one where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mpgrad.arrays.cuda import cuda_driver
from mpgrad.arrays.cuda.cuda_driver import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    IPC_HANDLE_BYTES,
    CudaDriver,
    CudaError,
)
from tests.cuda.conftest import forget_driver
from tests.cuda.fake_driver import TWO_GPUS
from tests.cuda.peer import Peer

MIB = 1 << 20
StartPeer = Callable[[], Peer]


def to_device(driver: CudaDriver, values: np.ndarray) -> int:
    pointer = driver.malloc(2 * MIB)
    driver.copy(pointer, values.ctypes.data, values.nbytes, HOST_TO_DEVICE)
    driver.synchronize()
    return pointer


def to_host(driver: CudaDriver, pointer: int, n: int) -> list[float]:
    values = np.empty(n, np.float32)
    driver.copy(values.ctypes.data, pointer, values.nbytes, DEVICE_TO_HOST)
    driver.synchronize()
    return values.tolist()


def test_an_array_over_memory_is_computed_with(driver: CudaDriver) -> None:
    pointer = to_device(driver, np.arange(6, dtype=np.float32))
    array = driver.array(pointer, (2, 3), np.float32)
    assert driver.pointer(array) == pointer
    assert driver.namespace.asnumpy(array + array).tolist() == [[0, 2, 4], [6, 8, 10]]
    transposed = driver.array(pointer + 4, (2, 2), np.float32, strides=(4, 12))
    assert driver.namespace.asnumpy(transposed).tolist() == [[1, 4], [2, 5]]
    driver.free(pointer)


def test_host_and_device_arrays_do_not_mix(driver: CudaDriver) -> None:
    array = driver.namespace.ones(3)
    with pytest.raises(TypeError, match=r"[Uu]nsupported type"):
        array + np.ones(3)


def test_reductions_and_elements_stay_on_the_device(driver: CudaDriver) -> None:
    array = driver.namespace.ones((2, 3))
    assert type(array.sum()) is type(array)
    assert type(array[0, 0]) is type(array)


def test_new_arrays_come_from_the_allocator(driver: CudaDriver) -> None:
    pointer = driver.malloc(2 * MIB)
    asked = []

    def allocate(nbytes: int) -> tuple[int, object]:
        asked.append(nbytes)
        return pointer, asked

    driver.set_allocator(allocate)
    try:
        array = driver.namespace.zeros((1024,), np.float32)
    finally:
        driver.set_allocator(None)
    assert asked == [4096]
    assert driver.pointer(array) == pointer


def test_a_stream_runs_in_order_and_an_event_orders_streams(driver: CudaDriver) -> None:
    source = to_device(driver, np.full(4, 7, np.float32))
    between, target = driver.malloc(2 * MIB), driver.malloc(2 * MIB)
    first, second, event = driver.stream(), driver.stream(), driver.event()
    driver.copy(between, source, 16, DEVICE_TO_DEVICE, first)
    event.record(first)
    second.wait_event(event)
    driver.copy(target, between, 16, DEVICE_TO_DEVICE, second)
    second.synchronize()
    assert event.done
    assert to_host(driver, target, 4) == [7] * 4


def test_pinned_memory_is_registered_once(driver: CudaDriver) -> None:
    host = np.ones(MIB, np.float32)
    address = host.ctypes.data // 4096 * 4096 + 4096
    driver.host_register(address, MIB)
    with pytest.raises(CudaError, match="AlreadyRegistered"):
        driver.host_register(address, MIB)
    driver.host_unregister(address)
    with pytest.raises(CudaError, match="NotRegistered"):
        driver.host_unregister(address)


def test_pageable_host_memory_may_change_after_a_copy_was_asked_for(driver: CudaDriver) -> None:
    host = np.full(4, 3, np.float32)
    pointer, stream = driver.malloc(2 * MIB), driver.stream()
    driver.copy(pointer, host.ctypes.data, 16, HOST_TO_DEVICE, stream)
    host[:] = 0
    stream.synchronize()
    assert to_host(driver, pointer, 4) == [3] * 4


# ------------------------------------------------------------------------ between processes


@pytest.mark.ipc
def test_a_handle_opens_the_whole_allocation(driver: CudaDriver, start_peer: StartPeer) -> None:
    pointer = to_device(driver, np.arange(8, dtype=np.float32))
    # The handle of an inner address is that of the whole, as CUDA has it.
    handle = driver.ipc_memory_handle(pointer + 16)
    assert len(handle) == IPC_HANDLE_BYTES
    peer = start_peer()
    peer("pointer = driver.open_ipc_memory(handle)", handle=handle)
    peer("array = driver.array(pointer, (8,), np.float32)")
    assert peer("driver.namespace.asnumpy(array).tolist()") == list(range(8))
    peer("array *= 2; driver.synchronize()")
    assert to_host(driver, pointer, 8) == list(range(0, 16, 2))
    peer("del array; driver.close_ipc_memory(pointer)")
    driver.free(pointer)


def test_the_exporter_cannot_open_its_own_handle(driver: CudaDriver) -> None:
    pointer = driver.malloc(2 * MIB)
    with pytest.raises(CudaError):
        driver.open_ipc_memory(driver.ipc_memory_handle(pointer))
    driver.free(pointer)


@pytest.mark.ipc
def test_an_event_orders_processes(driver: CudaDriver, start_peer: StartPeer) -> None:
    source = to_device(driver, np.full(4, 5, np.float32))
    target = to_device(driver, np.zeros(4, np.float32))
    stream, event = driver.stream(), driver.event(interprocess=True)
    handle = driver.ipc_event_handle(event)
    assert len(handle) == IPC_HANDLE_BYTES
    peer = start_peer()
    peer("pointer = driver.open_ipc_memory(memory)", memory=driver.ipc_memory_handle(target))
    peer("event = driver.open_ipc_event(handle)", handle=handle)
    driver.copy(target, source, 16, DEVICE_TO_DEVICE, stream)
    event.record(stream)
    peer("driver.current_stream().wait_event(event)")
    peer("array = driver.array(pointer, (4,), np.float32)")
    assert peer("driver.namespace.asnumpy(array).tolist()") == [5] * 4


def test_a_handle_of_no_event_is_refused(driver: CudaDriver) -> None:
    """With nothing left behind that could not be destroyed."""
    with pytest.raises(CudaError):
        driver.open_ipc_event(bytes(IPC_HANDLE_BYTES))


def test_the_fork_of_a_process_with_cuda_is_told(start_peer: StartPeer) -> None:
    """Only the fake is sure to notice; CUDA's own error comes later and says less."""
    peer = start_peer()
    peer("import os")
    peer("driver.malloc(4096)")
    told = peer(
        "def child():\n"
        "    r, w = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        try: driver.malloc(4096)\n"
        "        except CudaError as error: os.write(w, error.status.encode())\n"
        "        os._exit(0)\n"
        "    os.close(w); os.wait(); return os.read(r, 99).decode()\n"
    ) or peer("child()")
    assert "cudaErrorInitializationError" in told


# ---------------------------------------------------------------------- which driver it is


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets what MPGRAD_CUDA_DRIVER names."""

    def name(function: str) -> None:
        monkeypatch.setenv("MPGRAD_CUDA_DRIVER", function)
        forget_driver()

    yield name
    forget_driver()


def test_a_named_function_makes_the_driver(named: Callable[[str], None]) -> None:
    named(TWO_GPUS)
    assert cuda_driver.driver().name == "fake"
    assert cuda_driver.device_count() == 2


@pytest.mark.parametrize(
    ("function", "missing"), [("not_there:driver", "not_there"), ("math:two_gpus", "two_gpus")]
)
def test_a_named_function_that_is_not_there(
    named: Callable[[str], None], function: str, missing: str
) -> None:
    """It is not taken for a machine without GPUs."""
    named(function)
    with pytest.raises((ImportError, AttributeError), match=missing):
        cuda_driver.device_count()
