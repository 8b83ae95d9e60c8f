"""The drivers that the contract tests run on: always the fake, with ``-m gpu`` the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mpgrad.shm.cuda_driver import CudaDriver
from mpgrad.testing.fake_cuda import FakeCudaDriver
from tests.cuda.peer import Peer


@pytest.fixture(params=["fake", pytest.param("cupy", marks=pytest.mark.gpu)])
def driver(request: pytest.FixtureRequest) -> CudaDriver:
    if request.param == "fake":
        return FakeCudaDriver(2)
    pytest.importorskip("cupy")
    from mpgrad.shm.cuda_cupy import CupyDriver

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
