"""limited_group(): a cgroup with a limit, if this user may make one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
#: By resource: the directory of groups and the file with the limit, cgroup v2, then v1.
_PLACES = {
    "memory": ((_ROOT, "memory.max"), (_ROOT / "memory", "memory.limit_in_bytes")),
    "processes": ((_ROOT, "pids.max"), (_ROOT / "pids", "pids.max")),
}


@contextlib.contextmanager
def limited_group(what: str, limit: int) -> Iterator[Path | None]:
    """The directory of a new group, or None if it cannot be made; it is removed at the end.

    Args:
        what: "memory" (bytes) or "processes" (their number, threads included).
        limit: the limit.

    A process enters it by writing its number into the file ``cgroup.procs`` there.
    """
    group = _make(what, limit)
    yield group
    if group is not None:
        group.rmdir()  # its processes have ended


def entering(group: Path, command: list[str]) -> list[str]:
    """The command that runs ``command`` in ``group``."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]


def _make(what: str, limit: int) -> Path | None:
    for place, file in _PLACES[what]:
        group = place / f"mpgrad-stress-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / file).exists():
                raise OSError("the group has no such controller")
            (group / file).write_text(str(limit))
            if (group / "memory.swap.max").exists():
                (group / "memory.swap.max").write_text("0")
            return group
        except OSError:
            group.rmdir()
    return None
