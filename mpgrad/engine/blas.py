"""blas_limit(): the same number of BLAS threads wherever a rule runs.

4 of 36 matrix products differ in their bits between one and two OpenBLAS threads, so ``local``
keeps to the workers' number. The limit belongs to the process: overlapping limiters that each
restore "what was before" would undo each other, so one counter serves all threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_holders = 0
_controllers: list[Any] | None = None
_before: list[int] = []


@contextmanager
def blas_limit(threads: int) -> Iterator[None]:
    """Hold BLAS to ``threads`` threads in this process while any holder is inside."""
    global _holders
    with _lock:
        if _holders == 0:
            _before[:] = [library.num_threads for library in _libraries()]
            _set([threads] * len(_before))
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0:
                _set(_before)


def _libraries() -> list[Any]:
    """The BLAS libraries of this process; looked up once, which takes milliseconds."""
    global _controllers
    if _controllers is None:
        found = ThreadpoolController().select(user_api="blas")
        _controllers = list(found.lib_controllers)
    return _controllers


def _set(threads: list[int]) -> None:
    for library, count in zip(_libraries(), threads, strict=True):
        if library.num_threads != count:
            library.set_num_threads(count)
