"""WorkerEnvironment: what a worker takes over from the client: user code finds its world."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
from typing import NamedTuple


class WorkerEnvironment(NamedTuple):
    """Import path, working directory, what its parents set for Python, and logging level."""

    path: tuple[str, ...]
    directory: str
    variables: dict[str, str | None]
    log_level: int


def capture_environment() -> bytes:
    """This process's environment, pickled (it travels from client to worker only)."""
    environment = WorkerEnvironment(
        path=tuple(entry if entry else os.getcwd() for entry in sys.path),
        directory=os.getcwd(),
        variables={name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONHASHSEED")},
        log_level=logging.getLogger().getEffectiveLevel(),
    )
    return pickle.dumps(environment)


def restore_environment(data: bytes) -> WorkerEnvironment:
    """Take over the client's import path and directory; the rest is returned."""
    environment: WorkerEnvironment = pickle.loads(data)
    sys.path[:] = environment.path
    for name, value in environment.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # The directory may have been removed meanwhile; what needs it will say so.
    with contextlib.suppress(OSError):
        os.chdir(environment.directory)
    return environment
