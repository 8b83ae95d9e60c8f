"""ReadsOfWorkers: whether user code in the client has changed what a Function on a worker reads.

Functions are sent to workers as the backward begins. In the serial engine a hook, or a Function
that stays in the client, may change a global before a later Function reads it. Workers do not see
that, so it is an error.
"""

from __future__ import annotations

from typing import Any

from mpgrad.engine.handover import Handover, changed_numpy_errors
from mpgrad.engine.placement import Placed
from mpgrad.shipping.decision import what_changed
from mpgrad.wire.surroundings import capture_surroundings, name_of_change, what_cannot_travel


class ReadsOfWorkers:
    """Of one graph.

    Args:
        placed: the graph.
        handover: holds what was around its Functions when they were packed, before user code ran.
    """

    def __init__(self, placed: Placed, handover: Handover) -> None:
        self._frozen, self._code, self._handover = placed.frozen, placed.code, handover
        #: By Function and the classes on its ctx, the last of its Nodes in serial order; made when
        #: user code has run.
        self._last: dict[tuple[Any, ...], int] | None = None
        self._positions: dict[int, int] = {}

    def check(self, node: int) -> None:
        """User code has run at ``node``.

        Raises:
            RuntimeError: a Function behind it in serial order reads what is not as it was.
        """
        if not self._code:
            return
        if self._last is None:
            self._last = self._find_last()
        here = self._positions[node]
        later = [key for key, position in self._last.items() if position > here]
        if not later:
            return
        around = self._change_around()
        for function, *held in later:
            if changed := what_changed(function, tuple(held)) or around:
                raise RuntimeError(
                    f"{self._frozen.spec.nodes[node].name} ran in this process and has changed "
                    f"{changed}, which {function.__qualname__} reads behind it, on a worker that "
                    'does not see it. Change it before backward(), or set run_on = "client" on '
                    f"{function.__qualname__}"
                )

    def _change_around(self) -> str:
        """What has changed of what is brought along for all Functions, in words."""
        before, now = self._handover.around_functions(), capture_surroundings()
        changed = "" if now == before else name_of_change(before, now)
        if not changed and self._handover.numpy_errors != changed_numpy_errors():
            changed = "what NumPy does about floating-point errors (np.seterr)"
        return changed or what_cannot_travel()

    def _find_last(self) -> dict[tuple[Any, ...], int]:
        self._positions = {at: position for position, at in enumerate(self._frozen.spec.order)}
        nodes: Any = self._frozen.nodes
        last: dict[tuple[Any, ...], int] = {}
        for at, code in self._code.items():
            if nodes[at].function.run_on is None:  # else that is the user's promise
                key = (nodes[at].function, *code.held)
                last[key] = max(last.get(key, -1), self._positions[at])
        return last
