"""WorkerEnvironment: the settings of the client's process that each worker takes over."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
from typing import NamedTuple

from mpgrad.base.environ import (
    FIRST_ENVIRONMENT,
    Changes,
    changes_of_environment,
    current_environment,
    with_changes,
)
from mpgrad.base.interpreter import import_path, is_frozen


class WorkerEnvironment(NamedTuple):
    """Import path, working directory, logging level, and the variables that the client has changed
    before its workers began, with the values of before (None: there was none)."""

    path: tuple[str, ...] | None
    directory: str
    log_level: int
    variables: Changes
    #: The bytes that the branches of a worker may hold.
    branch_limit: int
    #: Whether published blocks have checksums.
    has_checksums: bool


def capture_environment(branch_limit: int, *, has_checksums: bool = False) -> bytes:
    """This process's environment, pickled (it goes from the client to workers only).

    Args:
        branch_limit, has_checksums: see ``WorkerEnvironment``.
    """
    environment = WorkerEnvironment(
        # A frozen application has its modules where no other interpreter finds them.
        path=None if is_frozen() else tuple(import_path()),
        directory=os.getcwd(),
        log_level=logging.getLogger().getEffectiveLevel(),
        variables=changes_of_environment(current_environment(), FIRST_ENVIRONMENT),
        branch_limit=branch_limit,
        has_checksums=has_checksums,
    )
    return pickle.dumps(environment)


def restore_environment(data: bytes) -> WorkerEnvironment:
    """Take over the client's import path and directory; return the rest."""
    environment: WorkerEnvironment = pickle.loads(data)
    if environment.path is not None:
        sys.path[:] = environment.path
    # The directory may have been removed meanwhile; code that needs it raises an error.
    with contextlib.suppress(OSError):
        os.chdir(environment.directory)
    first = with_changes(current_environment(), environment.variables)
    FIRST_ENVIRONMENT.clear()
    FIRST_ENVIRONMENT.update(first)
    return environment
