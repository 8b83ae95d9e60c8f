"""Branches: what this process has recorded and somebody may differentiate.

A branch is an entry of a cache. ``made_again`` makes it anew if it has been dropped, or if its
process has died.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from mpgrad.base import config, machine
from mpgrad.base.user_frames import level_of_caller
from mpgrad.calls.branch import Branch
from mpgrad.errors import PerformanceWarning

#: The part of the memory that branches may take by default.
DEFAULT_SHARE = 0.4

_MANY = (
    "branches of earlier calls, which nobody has differentiated, fill half of what they may hold "
    "(MPGRAD_BRANCH_LIMIT); over it they are let go, and made again if they are differentiated. "
    "Where you need values only (a validation loop, a list of losses), call under mg.no_grad(), or "
    "keep loss.item()"
)


def limit_bytes(processes: int) -> int:
    """What the branches of one of so many processes may hold (bytes): its share of
    ``MPGRAD_BRANCH_LIMIT``, or of 0.4 of the memory that all processes may use together.

    Raises:
        ValueError: ``MPGRAD_BRANCH_LIMIT`` is not a size.
    """
    setting = config.branch_limit()
    total = int(machine.memory_total() * DEFAULT_SHARE) if setting is None else setting
    return total // processes


class Branches:
    """The branches of this process by number. Thread-safe.

    Attributes:
        limit_bytes: of all of them; the oldest ones go first. None: as ``limit_bytes(1)`` says.
        on_change: is told the number of branches, and their bytes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: OrderedDict[int, tuple[Branch, int, Any]] = OrderedDict()
        #: The bytes of all of them.
        self.nbytes = 0
        self.limit_bytes: int | None = None
        self.on_change: Callable[[int, int], None] | None = None
        self._has_warned = False

    def put(self, number: int, branch: Branch, of_map: Any = None) -> None:
        """Keep a branch as long as there is room.

        Args:
            number, branch: see there.
            of_map: what the branches of one map have in common.
        """
        nbytes = branch.nbytes()
        limit = limit_bytes(1) if self.limit_bytes is None else self.limit_bytes
        with self._lock:
            self.drop(number)
            self._kept[number] = branch, nbytes, of_map
            self.nbytes += nbytes
            is_much = self.nbytes > limit // 2 and not self._has_warned
            if is_much and self._of_others(of_map) > limit // 2:
                self._has_warned = is_first = True
            else:
                is_first = False
            while self.nbytes > limit and len(self._kept) > 1:
                self.drop(next(iter(self._kept)))
        self._tell()
        if is_first:
            warnings.warn(_MANY, PerformanceWarning, stacklevel=level_of_caller())

    def _of_others(self, of_map: Any) -> int:
        return sum([nbytes for _, nbytes, other in self._kept.values() if other != of_map])

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change(len(self._kept), self.nbytes)

    def get(self, number: int) -> Branch | None:
        """The branch, if it is still here."""
        found = self._kept.get(number)
        return None if found is None else found[0]

    def drop(self, number: int) -> None:
        """Forget a branch that nobody will differentiate."""
        with self._lock:
            found = self._kept.pop(number, None)
            if found is not None:
                self.nbytes -= found[1]
        self._tell()

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()
            self.nbytes = 0
        self._tell()

    def __len__(self) -> int:
        return len(self._kept)

    def renew_lock(self) -> None:
        """In a forked child: a thread that does not exist here may hold the lock."""
        self._lock = threading.RLock()


#: Those of this process.
BRANCHES = Branches()
os.register_at_fork(after_in_child=BRANCHES.renew_lock)
