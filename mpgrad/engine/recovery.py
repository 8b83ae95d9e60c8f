"""Recovery: with ``Engine(recover="all")`` a backward whose coordinator died runs again.

All its data still exist: saved tensors are released after it has completed, ``.grad`` is changed
after that, and its own arrays lie in this process's arena.
"""

from __future__ import annotations

from mpgrad.autograd.running.running_backward import innermost
from mpgrad.errors import CoordinatorLost

#: The number of lost coordinators after which a backward fails: it may be their cause.
RECOVERIES_MAX = 3


class Recovery:
    """The recovery of one backward.

    Args:
        recover: the option of the Engine.
    """

    def __init__(self, recover: str) -> None:
        running = innermost()
        # An inner backward is part of a client task of the outer one, which cannot be repeated.
        is_inner = running is not None and running.session is not None
        self._left = RECOVERIES_MAX if recover == "all" and not is_inner else 0

    def allows(self, lost: CoordinatorLost) -> bool:
        """Whether it may run again. User code that has run in this process may not run twice."""
        if self._left and lost.has_run_user_code:
            lost.add_note(
                "The backward was not run again, because hooks or Functions of it had already "
                "run in this process."
            )
            return False
        self._left -= 1
        return self._left >= 0
