"""What has changed in ``os.environ`` since this process began; all in bytes, as in the system."""

from __future__ import annotations

import os
import time
from typing import TypeAlias

#: Variables with their new values; None: it is gone.
Changes: TypeAlias = dict[bytes, bytes | None]

#: How many threads libraries have: a worker's affair, where it is one.
LIBRARY_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

#: The environment when this module was loaded; a worker's is that of its client at that time, but
#: for what a worker has of its own (see ``wire.environment``).
FIRST_ENVIRONMENT: dict[bytes, bytes] = dict(os.environb)


def current_environment() -> dict[bytes, bytes]:
    """A copy of ``os.environb``."""
    # A copy through the mapping takes 40 us.
    found = getattr(os.environ, "_data", None)
    return dict(os.environb) if found is None else dict(found)


def changes_of_environment(before: dict[bytes, bytes], now: dict[bytes, bytes]) -> Changes:
    """The variables that have another value in ``now``."""
    if before == now:
        return {}
    names = sorted(before.keys() | now.keys())
    return {name: now.get(name) for name in names if before.get(name) != now.get(name)}


def changes_to_send() -> Changes:
    """The changes since ``FIRST_ENVIRONMENT`` that a call in another process sees."""
    found = changes_of_environment(FIRST_ENVIRONMENT, current_environment())
    for name in LIBRARY_THREADS:
        found.pop(name.encode(), None)
    return found


def with_changes(before: dict[bytes, bytes], changes: Changes) -> dict[bytes, bytes]:
    """``before`` with these changes."""
    found = {**before, **changes}
    return {name: value for name, value in found.items() if value is not None}


def set_environment(wanted: dict[bytes, bytes]) -> None:
    """Let ``os.environ`` be ``wanted``."""
    found = current_environment()
    if found == wanted:
        return
    for name in found.keys() - wanted.keys():
        del os.environb[name]
    for name, value in wanted.items():
        if found.get(name) != value:
            os.environb[name] = value
    if found.get(b"TZ") != wanted.get(b"TZ"):
        time.tzset()
