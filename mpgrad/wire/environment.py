"""WorkerEnvironment: the settings of the client's process that each worker takes over."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
from typing import NamedTuple


class WorkerEnvironment(NamedTuple):
    """Import path, working directory, Python settings of the parents, and logging level."""

    path: tuple[str, ...]
    directory: str
    variables: dict[str, str | None]
    log_level: int


def capture_environment() -> bytes:
    """This process's environment, pickled (it goes from the client to workers only)."""
    environment = WorkerEnvironment(
        path=tuple(entry if entry else os.getcwd() for entry in sys.path),
        directory=os.getcwd(),
        variables={name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONHASHSEED")},
        log_level=logging.getLogger().getEffectiveLevel(),
    )
    return pickle.dumps(environment)


def restore_environment(data: bytes) -> WorkerEnvironment:
    """Take over the client's import path and directory; return the rest."""
    environment: WorkerEnvironment = pickle.loads(data)
    sys.path[:] = environment.path
    for name, value in environment.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    # The directory may have been removed meanwhile; code that needs it raises an error.
    with contextlib.suppress(OSError):
        os.chdir(environment.directory)
    return environment
