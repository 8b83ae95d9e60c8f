"""MapTime: how long a map takes in both passes, so that ``auto`` compares whole maps."""

from __future__ import annotations

from collections.abc import Callable


class MapTime:
    """Adds up the time of one map, and tells the sum when its branches are gone.

    Each branch's Lifetime holds it. So a map that nobody can differentiate tells its time at once.

    Args:
        took_us: the microseconds of its forward.
        tell: gets the microseconds of both passes, perhaps from the collector, in any thread.
    """

    __slots__ = ("_tell", "_took_us")

    def __init__(self, took_us: float, tell: Callable[[float], None]) -> None:
        self._took_us, self._tell = took_us, tell

    def add(self, took_us: float) -> None:
        """Count a backward of its branches, too."""
        self._took_us += took_us

    def __del__(self) -> None:
        self._tell(self._took_us)
