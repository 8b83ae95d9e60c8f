"""The drivers that the contract tests run on: always the fake, with ``-m gpu`` the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import mpgrad as mg
from mpgrad.arrays.cuda import client_devices, cuda_driver, device_arrays
from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from tests.cuda.fake_driver import TWO_GPUS
from tests.cuda.fake_driver.driver import FakeCudaDriver
from tests.cuda.ipc import skip_or_be_silent
from tests.cuda.peer import Peer


@pytest.fixture(autouse=True)
def gpus_may_be_private(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("gpu"):
        skip_or_be_silent(request.node, monkeypatch)


@pytest.fixture(params=["fake", pytest.param("cupy", marks=pytest.mark.gpu)])
def driver(request: pytest.FixtureRequest) -> CudaDriver:
    if request.param == "fake":
        return FakeCudaDriver(2)
    pytest.importorskip("cupy")
    from mpgrad.arrays.cuda.cuda_cupy import CupyDriver

    real = CupyDriver()
    if not real.device_count():
        pytest.skip("no GPU")
    return real


@pytest.fixture
def start_peer(driver: CudaDriver) -> Iterator[Callable[[], Peer]]:
    """Starts processes of the same driver; they are killed after the test."""
    peers: list[Peer] = []

    def start() -> Peer:
        peers.append(Peer(driver.name))
        return peers[-1]

    yield start
    for peer in peers:
        peer.kill()


def forget_driver() -> None:
    for cached in (
        cuda_driver.driver,
        cuda_driver.device_count,
        device_arrays.cuda_namespace,
    ):
        cached.cache_clear()
    client_devices._memories.clear()


@pytest.fixture(params=[TWO_GPUS, pytest.param("cupy", marks=pytest.mark.gpu)])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process has GPUs, of the fake or real."""
    monkeypatch.setenv("MPGRAD_CUDA_DRIVER", request.param)
    forget_driver()
    if cuda_driver.device_count() == 0:
        pytest.skip("no GPU")
    with mg.Engine(mode="local"):
        yield request.param
    forget_driver()
    device_arrays.CUDA.in_use = False


@pytest.fixture
def two(gpus: str) -> None:
    """The process has at least two GPUs."""
    if cuda_driver.device_count() < 2:
        pytest.skip("needs two GPUs")
