"""What each rank does in the collectives that add nothing: who sends which segments to whom.

A rank sends from its *source* and receives into its *target*; the two may be one array.
"""

from __future__ import annotations

from mpgrad.distributed.states.reduction_tree import REPLACE, Receive, Send, Step

#: All of these collectives have one phase, but for the answers of a roll call.
PHASE, ANSWERS = 0, 1


def broadcast_steps(rank: int, ranks: int, root: int) -> list[Step]:
    """Along a binomial tree from ``root``: whoever has the one segment sends it on."""
    place = (rank - root) % ranks
    steps: list[Step] = []
    bit = 1
    while bit < ranks and not place & bit:
        bit <<= 1
    if place:
        steps.append(Receive((place - bit + root) % ranks, PHASE, 0, 1, REPLACE))
    # The farthest first: it has the most ranks behind it.
    while bit := bit >> 1:
        if place + bit < ranks:
            steps.append(Send((place + bit + root) % ranks, PHASE, 0, 1))
    return steps


def all_gather_steps(rank: int, ranks: int) -> list[Step]:
    """Every rank sends its one segment to all; a target has one for each rank."""
    others = [(rank + distance) % ranks for distance in range(1, ranks)]
    return [
        *(Send(peer, PHASE, 0, 1) for peer in others),
        *(Receive(peer, PHASE, peer, peer + 1, REPLACE) for peer in reversed(others)),
    ]


def all_to_all_steps(rank: int, ranks: int) -> list[Step]:
    """Segment k of the source goes to rank k, whose target has one for each rank."""
    others = [(rank + distance) % ranks for distance in range(1, ranks)]
    return [
        *(Send(peer, PHASE, peer, peer + 1) for peer in others),
        *(Receive(peer, PHASE, peer, peer + 1, REPLACE) for peer in reversed(others)),
    ]


def gather_steps(rank: int, ranks: int, root: int) -> list[Step]:
    """The one segment of every rank goes to ``root``, whose target has one for each."""
    if rank != root:
        return [Send(root, PHASE, 0, 1)]
    return [Receive(k, PHASE, k, k + 1, REPLACE) for k in range(ranks) if k != root]


def scatter_steps(rank: int, ranks: int, root: int) -> list[Step]:
    """Segment k of the source of ``root`` goes to rank k, whose target is that."""
    if rank != root:
        return [Receive(root, PHASE, 0, 1, REPLACE)]
    return [Send(k, PHASE, k, k + 1) for k in range(ranks) if k != root]


def roll_call_steps(rank: int, ranks: int) -> list[Step]:
    """Every rank comes to rank 0, which answers once all have come."""
    if rank != 0:
        return [Send(0, PHASE, 0, 1), Receive(0, ANSWERS, 0, 1, REPLACE)]
    others = range(1, ranks)
    return [
        *(Receive(peer, PHASE, 0, 1, REPLACE) for peer in others),
        *(Send(peer, ANSWERS, 0, 1) for peer in others),
    ]
