"""gpu_workers(): which GPU workers an Engine starts."""

from __future__ import annotations

from collections.abc import Sequence

from mpgrad.arrays.cuda import cuda_driver
from mpgrad.arrays.cuda.device_arrays import CUDA
from mpgrad.base import config


def gpu_workers(gpus: str | Sequence[int], mode: str) -> tuple[int, ...]:
    """The GPU number of each GPU worker; new tensors are then made where the workers can read them.

    Args:
        gpus: as of ``Engine``.
        mode: of the Engine.

    Raises:
        ValueError: ``gpus`` has another value, or there is no such GPU here.
    """
    asked = config.gpus() if gpus == "auto" else gpus
    if asked == "auto":
        asked = "all" if mode == "process" and CUDA.in_use else "none"
    if asked == "none" or not asked:
        return ()
    count = cuda_driver.device_count()
    if isinstance(asked, str) and asked != "all":
        raise ValueError(f'Engine(gpus={gpus!r}): it must be "auto", "all", "none" or numbers')
    numbers = tuple(range(count)) if isinstance(asked, str) else tuple(asked)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"Engine(gpus={gpus!r}): {number!r} is not the number of a GPU")
        if not 0 <= number < count:
            raise ValueError(f"Engine(gpus={gpus!r}): no GPU {number} among {count}")
    if numbers:
        # Imported here: most processes never load it.
        from mpgrad.arrays.cuda.client_devices import use_pool

        use_pool()
    return numbers
