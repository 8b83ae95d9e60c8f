"""kept_awake(): no processor falls asleep while something is measured.

What a sleeping processor needs to get going, and where a hypervisor puts one that wakes up, is the
machine's affair and has nothing to do with those who are compared. On a virtual machine it disturbs
most of all: two processors may be one core for a while, above all after one has slept, and two
processes then get the work of one done (``docs/profiles.md``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: While somebody holds it open, no processor falls into a sleep that takes longer to leave
#: than the microseconds that were written: https://docs.kernel.org/power/pm_qos_interface.html
_LATENCY = Path("/dev/cpu_dma_latency")


@contextmanager
def kept_awake() -> Iterator[str]:
    """Gives what came of it, in words: it needs the rights of root."""
    try:
        held = _LATENCY.open("wb", buffering=0)
    except OSError as error:
        yield f"may fall asleep ({_LATENCY}: {error.strerror})"
        return
    with held:
        held.write(struct.pack("i", 0))
        yield f"kept awake ({_LATENCY} = 0)"
