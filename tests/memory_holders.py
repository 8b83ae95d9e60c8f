"""Which processes hold an arena's memory: by a mapping or by an open descriptor.

An arena has no name in any directory, only the inode of its memfd. When nobody maps that or has it
open, the kernel has freed its pages: this is exact, while ``Shmem`` of ``/proc/meminfo`` counts
what all the others on the machine do as well.
"""

from __future__ import annotations

import contextlib
import os

_MEMFD = "/memfd:mpgrad-"


def arenas_of(pid: int) -> dict[int, str]:
    """The arenas that the process ``pid`` maps or has open: their names by inode.

    Empty for a process that is gone (a zombie holds nothing either) or that is another user's.
    """
    return {**_mapped(pid), **_open(pid)}


def holders_of(inodes: set[int]) -> set[int]:
    """All processes that map one of these arenas or have it open."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid for pid in pids if inodes & arenas_of(pid).keys()}


def shared_memory_bytes() -> int:
    """All shared memory of the machine, whoever uses it."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


def _mapped(pid: int) -> dict[int, str]:
    found = {}
    try:
        with open(f"/proc/{pid}/maps") as lines:
            for line in lines:
                # address, permissions, offset, device, inode, path
                words = line.split(maxsplit=5)
                if len(words) == 6 and words[5].startswith(_MEMFD):
                    found[int(words[4])] = _name(words[5])
    except OSError:
        return {}
    return found


def _open(pid: int) -> dict[int, str]:
    found = {}
    directory = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(directory):
            path = os.path.join(directory, number)
            with contextlib.suppress(OSError):  # closed meanwhile
                if (target := os.readlink(path)).startswith(_MEMFD):
                    found[os.stat(path).st_ino] = _name(target)
    return found


def _name(target: str) -> str:
    return target.strip().removeprefix(_MEMFD).removesuffix(" (deleted)")
