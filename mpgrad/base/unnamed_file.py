"""unnamed_file(): a file without a name, for bytes that go to another process by its descriptor."""

from __future__ import annotations

import os
import tempfile


def unnamed_file(name: str) -> int:
    """The descriptor of a new file in memory, which no program that is started inherits.

    Where a sandbox refuses ``memfd_create``, it is a temporary file, in memory if possible.

    Args:
        name: for ``/proc/PID/fd``.

    Raises:
        OSError: there can be no such file either.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError:
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryFile(dir=place) as file:
            return os.dup(file.fileno())
