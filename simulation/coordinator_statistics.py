"""statistics_of(): a snapshot of the coordinator's tables, as numbers."""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.scheduler.coordinator_state import CoordinatorState


class CoordinatorStatistics(NamedTuple):
    """The number of objects of each kind."""

    graphs: int
    ready: int
    in_flight: int
    workers: int
    sessions: int
    live_blocks: int


def statistics_of(state: CoordinatorState) -> CoordinatorStatistics:
    """The current numbers. All but those of members are 0 when no backward is running."""
    members = state.membership
    return CoordinatorStatistics(
        graphs=len(state.graphs),
        ready=len(state.ready),
        in_flight=sum(len(member.flights) for member in members.members.values()),
        workers=len(members.workers()),
        sessions=len(members.sessions()),
        live_blocks=len(state.leases),
    )
