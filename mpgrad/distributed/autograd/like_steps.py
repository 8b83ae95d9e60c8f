"""LikeSteps: what a backward from this host will probably ask the others, as the last ones did.

The wave of a loop's steps runs along one chain of questions each time. With a guess, all of them
are asked at once. A guess is checked by the answers; where it was wrong, the wave begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from mpgrad.distributed.autograd.rpc_nodes import RecvRpcBackward

#: Steps of different shapes that are remembered.
SHAPES_MAX = 100
#: Like steps after which one is expected to be like them.
LIKE_MIN = 2

#: (place among the messages that have come in the context, slot).
Asked: TypeAlias = frozenset[tuple[int, int]]


class _StepBefore(NamedTuple):
    asked: Asked
    times: int


class LikeSteps:
    """By the messages that have come in a context: what its backward has asked for, how often."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, int], ...], _StepBefore] = {}

    def guess(self, recvs: Sequence[RecvRpcBackward]) -> list[tuple[RecvRpcBackward, int]]:
        """What the backward of a context to which these have come will ask for, by slots."""
        known = self._known.get(_shape(recvs))
        if known is None or known.times < LIKE_MIN:
            return []
        return [(recvs[place], slot) for place, slot in sorted(known.asked)]

    def learn(self, recvs: Sequence[RecvRpcBackward], asked: Iterable[tuple[int, int]]) -> None:
        """It has asked for these (message, slot)."""
        places = {recv.message: place for place, recv in enumerate(recvs)}
        found = frozenset((places[message], slot) for message, slot in asked)
        shape = _shape(recvs)
        before = self._known.pop(shape, None)
        times = before.times + 1 if before is not None and before.asked == found else 1
        self._known[shape] = _StepBefore(found, times)
        if len(self._known) > SHAPES_MAX:
            del self._known[next(iter(self._known))]


def _shape(recvs: Sequence[RecvRpcBackward]) -> tuple[tuple[int, int], ...]:
    return tuple((recv.origin, len(recv.input_metadata)) for recv in recvs)
