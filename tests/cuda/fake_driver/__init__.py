"""CUDA without a GPU: drivers for ``MPGRAD_CUDA_DRIVER``, such as ``NO_GPUS`` and ``TWO_GPUS``."""

from __future__ import annotations

from tests.cuda.fake_driver.driver import FakeCudaDriver

NO_GPUS = f"{__name__}:no_gpus"
TWO_GPUS = f"{__name__}:two_gpus"
#: Processes cannot open each other's memory of these.
TWO_PRIVATE_GPUS = f"{__name__}:two_private_gpus"


def no_gpus() -> FakeCudaDriver:
    return FakeCudaDriver(0)


def two_gpus() -> FakeCudaDriver:
    return FakeCudaDriver(2)


def two_private_gpus() -> FakeCudaDriver:
    return FakeCudaDriver(2, can_open=False)
