"""How an item ends its worker: for tests of both array libraries."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: By name: what ends the process, and the word for it in the error.
DEATHS: dict[str, tuple[Callable[[], Any], str]] = {
    "segfault": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
    "exit": (lambda: os._exit(7), "status 7"),
    "abort": (lambda: os.kill(os.getpid(), signal.SIGABRT), "SIGABRT"),
}


def dies(item: int, how: str, directory: Path) -> None:
    """Item 2 notes that it has begun, and ends the worker."""
    if item == 2:
        with (directory / "begun").open("a") as file:
            file.write("x")
        DEATHS[how][0]()
