"""ArrayPlaces: which host had last got a large array, so that calls go where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.engine.cluster.host_tasks import STORED_ABOVE_BYTES
from mpgrad.engine.submitter import Submission

Array: TypeAlias = np.ndarray[Any, Any]

#: The arrays whose host is known.
PLACES_MAX = 10_000


class ArrayPlaces:
    """The hosts by number."""

    def __init__(self) -> None:
        #: By where an array lies in this process: another may lie there later, which costs little.
        self._hosts: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def bytes_elsewhere(self, host: int, submission: Submission) -> int:
        """The bytes of large arrays that a call needs and another host than ``host`` has."""
        return sum(
            [
                array.nbytes
                for array in _large(submission)
                if self._hosts.get(_place(array), host) != host
            ]
        )

    def note(self, host: int, calls: Sequence[Submission]) -> None:
        """That host gets what these calls need."""
        for submission in calls:
            self._hosts.update(dict.fromkeys(map(_place, _large(submission)), host))
        while len(self._hosts) > PLACES_MAX:
            del self._hosts[next(iter(self._hosts))]


def _large(submission: Submission) -> list[Array]:
    found = submission.requests[0].inputs
    return [one for one in found if one is not None and one.nbytes > STORED_ABOVE_BYTES]


def _place(array: Array) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes
