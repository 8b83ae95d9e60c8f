"""WorkerEnvironment: what a worker takes over from the client: user code finds its world."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
from typing import NamedTuple


class WorkerEnvironment(NamedTuple):
    """Import path, working directory and logging level."""

    path: tuple[str, ...]
    directory: str
    python_path: str | None
    log_level: int


def capture_environment() -> bytes:
    """This process's environment, pickled (it travels from client to worker only)."""
    environment = WorkerEnvironment(
        path=tuple(entry if entry else os.getcwd() for entry in sys.path),
        directory=os.getcwd(),
        python_path=os.environ.get("PYTHONPATH"),
        log_level=logging.getLogger().getEffectiveLevel(),
    )
    return pickle.dumps(environment)


def restore_environment(data: bytes) -> WorkerEnvironment:
    """Take over the client's import path and directory; the rest is returned."""
    environment: WorkerEnvironment = pickle.loads(data)
    sys.path[:] = environment.path
    if environment.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = environment.python_path
    # The directory may have been removed meanwhile; what needs it will say so.
    with contextlib.suppress(OSError):
        os.chdir(environment.directory)
    return environment
