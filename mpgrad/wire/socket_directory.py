"""SocketDirectory: the private directory of an engine's sockets, the only name that it has.

Whoever is left removes it when the engine ends. If everybody was killed at once it stays behind,
and the next engine on this machine removes it: the lock on it was freed with its owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import tempfile

_PREFIX, _LOCK = "mpgrad-", "lock"
#: As ``tempfile.mkdtemp`` makes them.
_NAME = re.compile(_PREFIX + "[a-z0-9_]{8}")
#: Entries of the directory for temporary files that are looked at.
ENTRIES_MAX = 10_000


class SocketDirectory:
    """A new directory, readable by this user alone (0700), and the lock that says it is in use."""

    def __init__(self) -> None:
        remove_stale()
        # It gets its name when it is locked: an unlocked one is taken for stale.
        unnamed = tempfile.mkdtemp(prefix=f".{_PREFIX}")
        parent, _, name = unnamed.rpartition("/")
        self._lock = -1
        try:
            self._lock = os.open(
                os.path.join(unnamed, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = os.path.join(parent, name[1:])
            os.rename(unnamed, self.path)
        except BaseException:
            self._unlock()
            shutil.rmtree(unnamed, ignore_errors=True)
            raise

    def remove(self) -> None:
        """The engine has ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)


def remove_stale() -> None:
    """Remove the directories of this user's engines that were killed whole."""
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            names = [
                entry.path
                for entry in itertools.islice(entries, ENTRIES_MAX)
                if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return
    for path in names:
        # Those of other users cannot be opened, those in use cannot be locked.
        with contextlib.suppress(OSError):
            _remove_if_stale(path)


def _remove_if_stale(path: str) -> None:
    if os.lstat(path).st_uid != os.getuid():
        return
    try:
        lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if _NAME.fullmatch(os.path.basename(path)):
            os.rmdir(path)  # its owner was killed while it removed it; one with files in it stays
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
