"""SocketDirectory: the private directory of an engine's sockets, the only name that it has.

Whoever is left removes it when the engine ends. If everybody was killed at once it stays behind,
and the next engine on this machine removes it: the lock on it was freed with its owner. Of what
lies there for temporary files, only that is touched which all of these prove to be an engine's:
the exact name, the owner, the mode, the content of the file that bears the lock, and that there is
nothing in it but that file and sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import stat
import tempfile

_PREFIX, _LOCK = "mpgrad-", "lock"
#: What it is called while it is made or removed: as a hidden one, and with this at its end.
_UNFINISHED = "-sockets"
#: As ``tempfile.mkdtemp`` makes them.
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}|\.{_PREFIX}[a-z0-9_]{{8}}{_UNFINISHED}")
#: What stands in the file that bears the lock.
_TOKEN = (
    b"This directory holds the sockets of an mpgrad engine while somebody has this file locked.\n"
)
#: Entries of the directory for temporary files, and of one of ours, that are looked at.
ENTRIES_MAX = 10_000
#: An engine that starts at the same time may take a directory that has no lock yet for stale.
TRIES = 16


class SocketDirectory:
    """A new directory, readable by this user alone (0700), and the lock that says it is in use."""

    def __init__(self) -> None:
        remove_stale()
        for left in reversed(range(TRIES)):
            try:
                self._make()
                return
            except (FileNotFoundError, BlockingIOError):
                if not left:
                    raise

    def _make(self) -> None:
        # It gets its name when it is locked: an unlocked one is taken for stale.
        unfinished = tempfile.mkdtemp(prefix=f".{_PREFIX}", suffix=_UNFINISHED)
        self._lock = -1
        try:
            self._lock = os.open(
                os.path.join(unfinished, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._lock, _TOKEN)
            self.path = _finished(unfinished)
            os.rename(unfinished, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                _clear(unfinished)
            self._unlock()
            raise

    def remove(self) -> None:
        """The engine has ended."""
        remove_directory(self.path)
        self._unlock()

    def _unlock(self) -> None:
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)


def remove_directory(path: str) -> None:
    """Remove the directory of an engine that has ended; what is not an engine's stays in it."""
    unfinished = _unfinished(path)
    # Client and coordinator may both do this: whoever comes second finds nothing.
    with contextlib.suppress(OSError):
        os.rename(path, unfinished)
        _clear(unfinished)


def remove_stale() -> None:
    """Remove the directories of this user's engines that were killed whole."""
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            paths = [
                entry.path
                for entry in itertools.islice(entries, ENTRIES_MAX)
                if _NAME.fullmatch(entry.name)
            ]
    except OSError:
        return
    for path in paths:
        # Those of other users cannot be opened, those in use cannot be locked.
        with contextlib.suppress(OSError):
            _remove_if_stale(path)


def _remove_if_stale(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_unfinished = path.endswith(_UNFINISHED)
        if not _is_ours(os.fstat(directory), stat.S_IFDIR, 0o700) or not _holds_nothing_else(path):
            return
        try:
            lock = os.open(_LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
        except FileNotFoundError:
            if is_unfinished:
                os.rmdir(path)  # empty, under a name that nobody else gives
            return
        try:
            if not _is_ours(os.fstat(lock), stat.S_IFREG, 0o600):
                return
            content = os.read(lock, len(_TOKEN) + 1)
            if content == _TOKEN or (is_unfinished and not content):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_unfinished:
                    _clear(path)
                else:
                    remove_directory(path)
        finally:
            os.close(lock)
    finally:
        os.close(directory)


def _is_ours(found: os.stat_result, kind: int, permissions: int) -> bool:
    is_such = stat.S_IFMT(found.st_mode) == kind and found.st_mode & 0o777 == permissions
    return is_such and found.st_uid == os.getuid()


def _holds_nothing_else(path: str) -> bool:
    """Whether all that is in the directory is of the kinds that an engine makes there."""
    with os.scandir(path) as entries:
        found = [*itertools.islice(entries, ENTRIES_MAX)]
    return len(found) < ENTRIES_MAX and all(map(_is_of_an_engine, found))


def _is_of_an_engine(entry: os.DirEntry[str]) -> bool:
    return entry.name == _LOCK or stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)


def _clear(path: str) -> None:
    """Remove a directory with what an engine makes in it; one that holds more stays, with that."""
    with os.scandir(path) as entries:
        paths = [entry.path for entry in entries if _is_of_an_engine(entry)]
    # The proof last: whoever is killed in here leaves it, or an empty directory.
    for found in sorted(paths, key=os.path.join(path, _LOCK).__eq__):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(found)
    os.rmdir(path)


def _finished(path: str) -> str:
    """ ".../mpgrad-abcdefgh" for ".../.mpgrad-abcdefgh-sockets"."""
    parent, _, name = path.rpartition("/")
    return os.path.join(parent, name[1:].removesuffix(_UNFINISHED))


def _unfinished(path: str) -> str:
    """The other way round."""
    parent, _, name = path.rpartition("/")
    return os.path.join(parent, f".{name}{_UNFINISHED}")
