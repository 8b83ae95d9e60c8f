"""ContextState: one autograd context on one host, and ReleasedContexts: those that are no more."""

from __future__ import annotations

from typing import TypeAlias

from mpgrad.distributed.states.pass_state import (
    Conclude,
    ContextGone,
    PartFailed,
    PassEvent,
    PassInstruction,
    PassState,
    ReportArrived,
    TakeGradients,
)

#: (rank of the host that called ``backward()``, its count there).
PassId: TypeAlias = tuple[int, int]

#: (rank of a host that has died, why).
Loss: TypeAlias = tuple[int, str]

#: The released contexts that a host remembers.
TOMBSTONES_MAX = 100_000


class ContextState:
    """One context on one host: whom it spans, and its backwards. Messages may come late or twice.

    Args:
        rank: of this host.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        #: The hosts that this one has called, or was called by, within the context.
        self.hosts: dict[int, None] = {}
        #: By host, why the context cannot outlive its process. It can where all that the process
        #: has in it came by calls of this host that may be made again: each host that has called
        #: or heard a process judges its own dealings with it, and one bond is enough.
        self._bonds: dict[int, str] = {}
        #: Whether a backward has ended well here.
        self.has_counted = False
        self._passes: dict[PassId, PassState] = {}
        #: By root, the highest number of a backward that has ended here.
        self._ended: dict[int, int] = {}

    @property
    def running(self) -> list[PassId]:
        """The backwards that have begun and not ended here."""
        return list(self._passes)

    def span(self, rank: int, bond: str = "") -> None:
        """The context reaches another host; ``bond``: why it cannot outlive that process."""
        if rank != self.rank:
            self.hosts[rank] = None
            if bond:
                self._bonds.setdefault(rank, bond)

    def why_over(self, rank: int) -> str:
        """Why the context is over with the process of ``rank``; empty: it goes on."""
        if rank in self._bonds:
            return self._bonds[rank]
        if self.has_counted:
            return "a backward had ended before, and its gradients there are gone"
        return next((self.why_over_by(root) for root, _ in self._passes if root != self.rank), "")

    def why_over_by(self, root: int) -> str:
        """Why it is over with a process that this host has called, if ``root`` runs a backward."""
        return f"rank {self.rank} had called it, and rank {root} ran a backward"

    def handle_event(
        self, backward: PassId, event: PassEvent, *, is_smart: bool
    ) -> list[PassInstruction]:
        """What follows for one backward."""
        root, number = backward
        state = self._passes.get(backward)
        if state is None:
            if number <= self._ended.get(root, -1):
                return self._to_latecomer(event) if root == self.rank else []
            state = self._passes[backward] = PassState(self.rank, root, is_smart=is_smart)
        steps = state.handle_event(event)
        self.has_counted = self.has_counted or any(isinstance(s, TakeGradients) for s in steps)
        if state.is_over:
            del self._passes[backward]
            self._ended[root] = max(number, self._ended.get(root, -1))
        return steps

    def _to_latecomer(self, event: PassEvent) -> list[PassInstruction]:
        """A host that did not know of the end is told: it was in no list, so it was no success."""
        if isinstance(event, ReportArrived):
            return [Conclude(event.sender, commits=False)]
        if isinstance(event, PartFailed):
            return [Conclude(event.rank, commits=False)]
        return []

    def close(self, rank: int) -> list[tuple[PassId, list[PassInstruction]]]:
        """All backwards end, because of ``rank``: what follows for each."""
        gone = ContextGone(rank)
        return [(one, self.handle_event(one, gone, is_smart=True)) for one in self.running]


def over(loss: Loss, why: str) -> Loss:
    """A loss that ends a context, though another process takes the place of the lost one."""
    rank, cause = loss
    return rank, f"{cause} (its context is over: {why})"


class ReleasedContexts:
    """Tombstones: a message that comes late must not revive a context."""

    def __init__(self) -> None:
        #: In the order in which they were released: the host that was lost with it, and why.
        self._losses: dict[int, Loss | None] = {}

    def add(self, context: int, loss: Loss | None = None) -> None:
        """``context`` is no more, perhaps since a host was lost."""
        self._losses[context] = loss
        if len(self._losses) > TOMBSTONES_MAX:
            del self._losses[next(iter(self._losses))]

    def __contains__(self, context: int) -> bool:
        return context in self._losses

    def loss(self, context: int) -> Loss | None:
        """The loss that has ended a context; None if it was left, or is not known."""
        return self._losses.get(context)
