"""kept_awake(): keeps processors out of deep sleep during a measurement.

The time in which a sleeping processor wakes up, and the core where a hypervisor puts it, depend on
the machine and not on the contenders. On a virtual machine they disturb most: two processors may
share one core for a while, above all after one has slept, and two processes then do the work of one
(``docs/profiles.md``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: While it is open, no processor enters a sleep that takes longer to leave than the microseconds
#: written to it: https://docs.kernel.org/power/pm_qos_interface.html
_LATENCY = Path("/dev/cpu_dma_latency")


@contextmanager
def kept_awake() -> Iterator[str]:
    """Yields the outcome in words: it needs the rights of root."""
    try:
        held = _LATENCY.open("wb", buffering=0)
    except OSError as error:
        yield f"may fall asleep ({_LATENCY}: {error.strerror})"
        return
    with held:
        held.write(struct.pack("i", 0))
        yield f"kept awake ({_LATENCY} = 0)"
