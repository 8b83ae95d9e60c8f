"""Which processes hold an arena's memory: by a mapping or by an open descriptor.

An arena has no name in any directory, only the inode of its memfd. When nobody maps that or has it
open, the kernel has freed its pages: this is exact, while ``Shmem`` of ``/proc/meminfo`` counts
what all the others on the machine do as well.
"""

from __future__ import annotations

import contextlib
import os

_MEMFD = "/memfd:mpgrad-"
#: The unit of ``st_blocks`` (``man 7 inode``).
_BLOCK_BYTES = 512


def arenas_of(pid: int) -> dict[int, str]:
    """The arenas that the process ``pid`` maps or has open: their names by inode.

    Empty for a process that is gone (a zombie holds nothing either) or that is another user's.
    """
    return {**_mapped(pid), **_open(pid)}


def holders_of(inodes: set[int]) -> set[int]:
    """All processes that map one of these arenas or have it open."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid for pid in pids if inodes & arenas_of(pid).keys()}


def arena_bytes(pid: int) -> int:
    """What the kernel has allotted to the arenas that the process ``pid`` has open."""
    sizes = {}
    for path in _descriptors(pid):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(path).startswith(_MEMFD):
                status = os.stat(path)
                sizes[status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


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
    for path in _descriptors(pid):
        with contextlib.suppress(OSError):  # closed meanwhile
            if (target := os.readlink(path)).startswith(_MEMFD):
                found[os.stat(path).st_ino] = _name(target)
    return found


def _descriptors(pid: int) -> list[str]:
    directory = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        return [os.path.join(directory, number) for number in os.listdir(directory)]
    return []


def _name(target: str) -> str:
    return target.strip().removeprefix(_MEMFD).removesuffix(" (deleted)")
