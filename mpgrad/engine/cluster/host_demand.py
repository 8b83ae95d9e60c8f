"""HostDemand: how many hosts of a cluster an engine takes, and asks an autoscaler for."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class HostDemand:
    """The limits that the user has set.

    Args:
        least: the hosts that an autoscaler is asked to keep.
        most: the hosts that take part, and up to which it is asked for what calls need; None: all
            take part, and it is asked for ``least``.
    """

    least: int = 0
    most: int | None = None

    def room(self, hosts: int) -> int | None:
        """How many more hosts may take part when so many do; None: all that there are."""
        return None if self.most is None else max(self.most - hosts, 0)

    def wanted(self, calls: int, calls_per_host: float) -> int | None:
        """The hosts for so many calls that wait or run; None: nobody is asked."""
        if self.most is None and not self.least:
            return None
        needed = 0 if self.most is None else min(math.ceil(calls / calls_per_host), self.most)
        return max(self.least, needed)
