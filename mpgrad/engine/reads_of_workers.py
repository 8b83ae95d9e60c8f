"""ReadsOfWorkers: whether user code in the client has changed what a Function on a worker reads.

Functions are sent to workers as the backward begins. In the serial engine a hook, or a Function
that stays in the client, may change a global before a later Function reads it. Workers do not see
that, so it is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.engine.placement import Placed
from mpgrad.shipping.decision import what_changed
from mpgrad.wire.surroundings import capture_surroundings, name_of_change


class ReadsOfWorkers:
    """Of one graph.

    Args:
        placed: the graph, about to be handed over.
    """

    def __init__(self, placed: Placed) -> None:
        self._frozen, self._code = placed.frozen, placed.code
        #: By Function and the classes on its ctx, the last of its Nodes in serial order; made when
        #: user code has run.
        self._last: dict[tuple[Any, ...], int] | None = None
        self._positions: dict[int, int] = {}
        self._surroundings = capture_surroundings() if placed.code else b""
        self._numpy_errors = np.geterr() if placed.code else None

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
        for (function, *held), position in self._last.items():
            if position <= here or function.run_on is not None:
                continue
            changed = what_changed(function, tuple(held))
            if not changed and self._surroundings != (now := capture_surroundings()):
                changed = name_of_change(self._surroundings, now)
            if not changed and self._numpy_errors != np.geterr():
                changed = "what NumPy does about floating-point errors (np.seterr)"
            if changed:
                raise RuntimeError(
                    f"{self._frozen.spec.nodes[node].name} ran in this process and has changed "
                    f"{changed}, which {function.__qualname__} reads behind it, on a worker that "
                    'does not see it. Change it before backward(), or set run_on = "client" on '
                    f"{function.__qualname__}"
                )

    def _find_last(self) -> dict[tuple[Any, ...], int]:
        self._positions = {at: position for position, at in enumerate(self._frozen.spec.order)}
        nodes: Any = self._frozen.nodes
        last: dict[tuple[Any, ...], int] = {}
        for at, code in self._code.items():
            key = (nodes[at].function, *code.held)
            last[key] = max(last.get(key, -1), self._positions[at])
        return last
