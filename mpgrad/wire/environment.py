"""WorkerEnvironment: the settings of the client's process that each worker takes over."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
from collections.abc import Sequence
from typing import NamedTuple

from mpgrad.base.environ import (
    FIRST_ENVIRONMENT,
    Changes,
    changes_of_environment,
    current_environment,
    with_changes,
)
from mpgrad.base.interpreter import import_path, is_frozen

_TEXTS = frozenset({str})


def current_directory() -> bytes | None:
    """The working directory; None if it does not exist."""
    try:
        return os.getcwdb()
    except OSError:
        return None


def current_arguments() -> list[str] | None:
    """A copy of ``sys.argv``; None if it is no list of texts, which no other process can have."""
    found = getattr(sys, "argv", None)
    return found[:] if isinstance(found, list) and _TEXTS.issuperset(map(type, found)) else None


class KeptArguments:
    """``sys.argv`` as it was, whatever it was: the same list, and the same in it."""

    __slots__ = ("_found", "_items")

    def __init__(self) -> None:
        self._found = found = getattr(sys, "argv", None)
        self._items = found[:] if isinstance(found, list) else []

    def restore(self) -> None:
        """Have it again."""
        if isinstance(self._found, list):
            self._found[:] = self._items
        if self._found is None:
            vars(sys).pop("argv", None)
        else:
            sys.argv = self._found


def set_arguments(texts: Sequence[str]) -> None:
    """Let ``sys.argv`` have these, if possible in the list that others have imported."""
    if isinstance(getattr(sys, "argv", None), list):
        sys.argv[:] = texts
    else:
        sys.argv = [*texts]


#: ``sys.argv`` when this module was loaded; a worker's is that of its client at that time.
FIRST_ARGUMENTS: list[str] = current_arguments() or [""]
#: ``sys.path`` then, alike.
FIRST_PATH: list[str] = import_path()


class _Taken:
    """What a worker has taken over last. A client has its own."""

    is_worker = False
    path: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
    log_levels: tuple[dict[str, int], int] = {}, logging.NOTSET


def added_path() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a program has added to ``sys.path`` since its start, in front and behind."""
    if _Taken.is_worker:
        return _Taken.path
    now = import_path()
    if now == FIRST_PATH or is_frozen():
        return (), ()
    start = next((at for at, entry in enumerate(now) if entry in FIRST_PATH), 0)
    return tuple(now[:start]), tuple([one for one in now[start:] if one not in FIRST_PATH])


def set_added_path(first: tuple[str, ...], last: tuple[str, ...]) -> None:
    """In a worker, take over what ``added_path`` has found; what it has added itself stays."""
    if _Taken.is_worker and _Taken.path != (first, last):
        added = {entry for part in _Taken.path for entry in part}
        _Taken.path = first, last
        sys.path[:] = [*first, *[one for one in sys.path if one not in added], *last]


def log_levels() -> tuple[dict[str, int], int]:
    """The levels of the loggers that have one, by name, and what ``logging.disable`` was given."""
    if _Taken.is_worker:
        return _Taken.log_levels
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    levels = {name: one.level for name, one in loggers.items() if isinstance(one, logging.Logger)}
    return {name: level for name, level in levels.items() if level}, logging.root.manager.disable


def set_log_levels(levels: dict[str, int], disabled: int) -> None:
    """In a worker, take over what ``log_levels`` has found."""
    before = _Taken.log_levels[0]
    if _Taken.is_worker and _Taken.log_levels != (levels, disabled):
        for name, level in {**dict.fromkeys(before, logging.NOTSET), **levels}.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(disabled)
        _Taken.log_levels = levels, disabled


class WorkerEnvironment(NamedTuple):
    """Import path, ``sys.argv``, working directory, logging level, and the variables that the
    client has changed before its workers began, with the values of before (None: there was
    none)."""

    path: tuple[str, ...] | None
    arguments: list[str]
    directory: bytes | None
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
        arguments=FIRST_ARGUMENTS,
        directory=current_directory(),
        log_level=logging.getLogger().getEffectiveLevel(),
        variables=changes_of_environment(current_environment(), FIRST_ENVIRONMENT),
        branch_limit=branch_limit,
        has_checksums=has_checksums,
    )
    return pickle.dumps(environment)


def restore_environment(data: bytes) -> WorkerEnvironment:
    """Take over the client's import path, arguments and directory; return the rest."""
    environment: WorkerEnvironment = pickle.loads(data)
    _Taken.is_worker = True
    if environment.path is not None:
        sys.path[:] = environment.path
    FIRST_ARGUMENTS[:] = environment.arguments
    set_arguments(FIRST_ARGUMENTS)
    # The directory may have been removed meanwhile; code that needs it raises an error.
    with contextlib.suppress(OSError):
        os.chdir(environment.directory or b"")
    first = with_changes(current_environment(), environment.variables)
    FIRST_ENVIRONMENT.clear()
    FIRST_ENVIRONMENT.update(first)
    return environment
