"""ClientState: the protocol from the side of one calling thread, and its running graphs.

Rules of this file: as in ``coordinator_state``.
"""

from __future__ import annotations

from typing import Any

from mpgrad.errors import InvariantViolated, ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do


class ClientState:
    """The graphs that the session waits for, and the outcome of each one that has ended."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        #: Graphs submitted and not ended, in the order of submission.
        self.running: list[int] = []
        #: Ended graphs that nobody has fetched yet.
        self.outcomes: dict[int, do.CompleteGraph | do.FailGraph] = {}
        #: Results of running graphs that have come before the end, by number.
        self._delivered: dict[int, dict[int, bytes]] = {}
        self._executing: list[tuple[int, int, int]] = []
        #: Running graphs that the caller has cancelled: none of their tasks begins any more.
        self._cancelled: set[int] = set()

    def handle_event(self, event: Any) -> list[Any]:
        """Handle a request of the caller, a message of the coordinator, or the end of a task.

        A submission needs only the graph's number here: the shell sends the tables. The end of a
        cancelled graph is reported, too.

        Raises:
            ProtocolError: the coordinator speaks of a graph that is not running.
        """
        if isinstance(event, ev.GraphSubmitted):
            self.running.append(event.graph)
            return []
        if isinstance(event, ev.GraphCancelled):
            if event.graph not in self.running:
                return []
            self._cancelled.add(event.graph)
            return [event]
        if isinstance(event, do.DispatchNodeTask):
            if event.owner_number not in self.running:
                raise ProtocolError(f"a task of graph {event.owner_number}, which is not running")
            if event.owner_number in self._cancelled:
                return [ev.NodeTaskDropped(self.peer, event.graph, event.task, event.attempt)]
            self._executing.append((event.graph, event.task, event.attempt))
            return [do.ExecuteNodeTask(event)]
        if isinstance(event, ev.NodeTaskFinished):
            reply = event.reply
            self._executing.remove((reply.graph, reply.task, reply.attempt))
            return [reply]
        if isinstance(event, do.DeliverCaptures):
            if event.graph not in self.running:
                raise ProtocolError(f"results of graph {event.graph}, which is not running")
            self._delivered.setdefault(event.graph, {}).update(event.captures)
            return []
        if isinstance(event, do.CompleteGraph | do.FailGraph):
            if event.graph not in self.running:
                raise ProtocolError(f"graph {event.graph} ended twice, or was never submitted")
            self.running.remove(event.graph)
            self._cancelled.discard(event.graph)
            delivered = self._delivered.pop(event.graph, None)
            if delivered is not None and isinstance(event, do.CompleteGraph):
                event = _with(event, delivered)
            self.outcomes[event.graph] = event
            return []
        if isinstance(event, do.GraphForgotten):
            if event.graph in self.running:
                raise ProtocolError(f"graph {event.graph}, which it has lost")
            return []
        if isinstance(event, do.CancelGraph | do.GraphGoesOn):
            return []  # a task that has begun is always finished and answered
        raise InvariantViolated(f"a client cannot handle {type(event).__name__}")


def _with(end: do.CompleteGraph, delivered: dict[int, bytes]) -> do.CompleteGraph:
    """``end`` with the results that have come before it."""
    captures = list(end.captures)
    for number, capture in delivered.items():
        if not 0 <= number < len(captures) or captures[number] is not None:
            raise ProtocolError(f"result {number} of graph {end.graph} came twice, or is not one")
        captures[number] = capture
    return end._replace(captures=tuple(captures))
