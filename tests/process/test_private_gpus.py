"""GPU workers where CUDA IPC does not work: the same bits, through pinned host memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mpgrad as mg
from mpgrad.arrays.cuda import cuda_driver
from tests.cuda.fake_driver import TWO_PRIVATE_GPUS
from tests.process.test_gpus import Cubed, fingerprints, gpus_of, gradient, weights

pytestmark = pytest.mark.process

PROGRAMS = 6


@pytest.fixture(scope="module", autouse=True)
def private_gpus(module_leaves_nothing: None) -> Iterator[None]:
    with gpus_of(TWO_PRIVATE_GPUS):
        yield


@pytest.fixture(autouse=True)
def leaves_nothing(private_gpus: None) -> None:
    """This process keeps its memory on the GPUs for the next test: the module is checked."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:CUDA IPC does not work")
@pytest.mark.parametrize("gpus", [[0, 0], [0, 1]])
def test_random_programs(gpus: list[int]) -> None:
    devices = ("cpu", *(f"cuda:{gpu}" for gpu in gpus))
    with mg.Engine("local"):
        expected = [fingerprints(seed, devices) for seed in range(PROGRAMS)]
    with mg.Engine("process", cpu_workers=1, gpus=gpus) as engine:
        assert [fingerprints(seed, devices) for seed in range(PROGRAMS)] == expected
        assert engine.statistics().backwards_process == PROGRAMS


def test_what_goes_through_the_host_is_counted_and_said_once() -> None:
    with mg.Engine("local"):
        expected = gradient()
    with mg.Engine("process", cpu_workers=1, gpus=[0, 0]) as engine:
        with pytest.warns(RuntimeWarning, match="CUDA IPC does not work.*MapBufferObjectFailed"):
            assert gradient() == expected
        before = engine.statistics()
        assert gradient() == expected
        after = engine.statistics()
        # At least the weight, which was saved, and its gradient: there and back.
        weight = weights()[0]
        grown = after.through_host_bytes - before.through_host_bytes
        assert grown >= 2 * weight.numel() * 4
        assert after.copied_bytes - before.copied_bytes >= grown


@pytest.mark.filterwarnings("ignore:CUDA IPC does not work")
def test_saved_tensors_with_gaps(private_gpus: None) -> None:
    """Their strides reach the worker's Function, whatever lies between the elements."""

    def run() -> list[float]:
        weight, _ = weights()
        Cubed.apply(weight.t()[::2, 1::3]).sum().cpu().backward()
        return weight.grad.cpu().numpy().tolist()

    with mg.Engine("local"):
        expected = run()
    with mg.Engine("process", cpu_workers=1, gpus=[0]):
        assert run() == expected


@pytest.mark.filterwarnings("ignore:CUDA IPC does not work")
def test_saved_tensors_without_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to wait for those, so it does not matter that no event can be exported either."""
    monkeypatch.setattr(cuda_driver.driver(), "_can_share", False)
    x = mg.zeros(0, 3, device="cuda", requires_grad=True)
    with mg.Engine("process", cpu_workers=1, gpus=[0]):
        (x * x).sum().backward()
    assert x.grad.shape == (0, 3)
