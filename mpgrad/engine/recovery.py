"""repeat_after_loss(): ``Engine(recover="all")``: a backward whose coordinator died is run again.

Nothing that it needs is gone: saved tensors are released when it has completed, ``.grad`` is
changed after that, and its own arrays lie in this process's arena.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mpgrad.errors import CoordinatorLost

T = TypeVar("T")

#: A backward that has lost so many coordinators is not the victim of an accident.
RECOVERIES_MAX = 3


def repeat_after_loss(run: Callable[[], T], note_recovery: Callable[[], None]) -> T:
    """Call ``run`` until no coordinator dies under it.

    Args:
        run: one attempt, on a fresh engine if the last one is gone.
        note_recovery: called before each further attempt.

    Raises:
        CoordinatorLost: it died for the ``RECOVERIES_MAX + 1``-th time, or code of the user had
            already run in this process, and may not run twice.
    """
    for _ in range(RECOVERIES_MAX):
        try:
            return run()
        except CoordinatorLost as lost:
            if lost.has_run_user_code:
                lost.add_note(
                    "The backward was not run again, because hooks or Functions of it had already "
                    "run in this process."
                )
                raise
        note_recovery()
    return run()
