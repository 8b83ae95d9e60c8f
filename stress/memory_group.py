"""memory_group(): a cgroup whose processes may use little memory, where this user may make one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: Where groups are made and the file with their limit: cgroup v2, then v1.
_PLACES = (
    (Path("/sys/fs/cgroup"), "memory.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
)


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """The directory of a new group, or None where none can be made; gone at the end.

    A process enters it by writing its number into the file ``cgroup.procs`` there.
    """
    group = _make(limit_bytes)
    yield group
    if group is not None:
        group.rmdir()  # its processes have ended


def _make(limit_bytes: int) -> Path | None:
    for place, limit in _PLACES:
        group = place / f"mpgrad-stress-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / limit).exists():
                raise OSError("the group has no memory controller")
            (group / limit).write_text(str(limit_bytes))
            if (group / "memory.swap.max").exists():
                (group / "memory.swap.max").write_text("0")
            return group
        except OSError:
            group.rmdir()
    return None
