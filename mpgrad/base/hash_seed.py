"""How this process hashes strings, which decides the order of a set, and how its children do.

Python draws the seed when it starts and tells nobody, so children can take over only one that was
given. Else all children of a process share one: they agree with each other.
"""

from __future__ import annotations

import functools
import secrets
import sys

#: Of Python: seeds are 32 bits wide.
_SEEDS = 1 << 32


@functools.lru_cache(maxsize=1)
def fixed_hash_seed() -> str | None:
    """The seed that this process was started with; None if it drew one."""
    if not sys.flags.hash_randomization:
        return "0"
    if sys.flags.ignore_environment:
        return None
    # What stands in os.environ may have been set since.
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    seeds = [entry.partition(b"=")[2] for entry in entries if entry.startswith(_VARIABLE)]
    return seeds[0].decode() if seeds and seeds[0].isdigit() else None


_VARIABLE = b"PYTHONHASHSEED="


@functools.lru_cache(maxsize=1)
def hash_seed_for_children() -> str:
    """``PYTHONHASHSEED`` of what this process starts."""
    return fixed_hash_seed() or str(secrets.randbelow(_SEEDS - 1) + 1)
