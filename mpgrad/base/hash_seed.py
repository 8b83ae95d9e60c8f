"""The hash seed of this process, which decides the order of sets, and that of its children.

Python draws the seed when it starts and does not reveal it, so children can only take over a seed
that was given. Otherwise all children of a process share a new one.
"""

from __future__ import annotations

import functools
import secrets
import sys

#: The seeds of Python are 32 bits wide.
_SEEDS = 1 << 32


@functools.lru_cache(maxsize=1)
def fixed_hash_seed() -> str | None:
    """The seed that this process was started with; None if it drew one."""
    if not sys.flags.hash_randomization:
        return "0"
    if sys.flags.ignore_environment:
        return None
    # The value in os.environ may have been set later.
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
    """``PYTHONHASHSEED`` for the children of this process."""
    return fixed_hash_seed() or str(secrets.randbelow(_SEEDS - 1) + 1)
