"""UnevenInputs: how ranks know, before each forward of a model, whose inputs have ended.

A rank whose inputs have ended has *joined*: it rests, and takes part in what the others do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpgrad.distributed.collectives import all_gather_into_tensor
from mpgrad.distributed.process_group import ProcessGroup
from mpgrad.ops.new_tensors.creation import empty, from_numpy


class Round(NamedTuple):
    """One forward of all ranks that have not joined, and its backward."""

    #: Ranks of the group that have inputs; at least one.
    active: tuple[int, ...]
    #: Whether buffers are copied before the forward, and gradients averaged after it.
    copies_buffers: bool
    averages: bool

    @property
    def source(self) -> int:
        """The rank whose buffers count."""
        return self.active[-1]


class UnevenInputs:
    """One rank's view of one ``join()``.

    Args:
        group: of ranks.
        divides_by_all: averages are over all ranks, also those that have joined.
        throws: all ranks raise as soon as one has joined.
    """

    def __init__(self, group: ProcessGroup, *, divides_by_all: bool, throws: bool) -> None:
        self._group, self._divides_by_all, self._throws = group, divides_by_all, throws
        #: The ranks that had inputs in the last round.
        self.last_active = tuple(range(group.size()))

    def divisor(self, now: Round) -> int:
        """By what the sums of a round are divided."""
        return self._group.size() if self._divides_by_all else len(now.active)

    def go_on(self, *, copies_buffers: bool, averages: bool) -> Round:
        """This rank has inputs.

        Raises:
            RuntimeError: another one has none, and all are to raise then.
        """
        now = self._round(True, copies_buffers, averages)
        assert now is not None
        if self._throws and len(now.active) < self._group.size():
            raise RuntimeError(
                "Detected at least one rank that exhausted inputs. Throwing across all ranks."
            )
        return now

    def rest(self) -> Round | None:
        """This rank has none; what the others do, or None once no rank has any.

        Raises:
            RuntimeError: another one has inputs, and all are to raise then.
        """
        now = self._round(False, False, False)
        if now is not None and self._throws:
            raise RuntimeError(f"Rank {self._group.rank()} exhausted all inputs.")
        return now

    def _round(self, *mine: bool) -> Round | None:
        rows = empty((self._group.size(), len(mine)), dtype=np.bool_)
        all_gather_into_tensor(rows, from_numpy(np.array(mine)), self._group)
        table = rows.numpy()
        active = tuple(map(int, np.flatnonzero(table[:, 0])))
        if not active:
            return None
        self.last_active = active
        return Round(active, bool(table[:, 1].any()), bool(table[:, 2].any()))
