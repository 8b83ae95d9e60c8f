"""Recovery: ``Engine(recover="all")``: a backward whose coordinator died is run again.

Nothing that it needs is gone: saved tensors are released when it has completed, ``.grad`` is
changed after that, and its own arrays lie in this process's arena.
"""

from __future__ import annotations

from mpgrad.autograd.running.running_backward import innermost
from mpgrad.errors import CoordinatorLost

#: A backward that has lost so many coordinators is not the victim of an accident.
RECOVERIES_MAX = 3


class Recovery:
    """Of one backward.

    Args:
        recover: the option of the Engine.
    """

    def __init__(self, recover: str) -> None:
        running = innermost()
        # An inner backward is part of a client task of the outer one, which cannot be repeated.
        is_inner = running is not None and running.session is not None
        self._left = RECOVERIES_MAX if recover == "all" and not is_inner else 0

    def allows(self, lost: CoordinatorLost) -> bool:
        """Whether it may run once more. Code of the user that has run here may not run twice."""
        if self._left and lost.has_run_user_code:
            lost.add_note(
                "The backward was not run again, because hooks or Functions of it had already "
                "run in this process."
            )
            return False
        self._left -= 1
        return self._left >= 0
