"""UpstreamWalk: which tensors of messages the Nodes of one host lead back to."""

from __future__ import annotations

from collections.abc import Iterable

from mpgrad.distributed.autograd.rpc_nodes import RecvRpcBackward
from mpgrad.distributed.states.marking import Slot
from mpgrad.recording.graph.node import Edge, Node


class UpstreamWalk:
    """Visits each Node behind what has left once, however much leaves.

    Args:
        context_id: messages of other contexts count for nothing.
    """

    def __init__(self, context_id: int) -> None:
        self._context_id = context_id
        self._leads: dict[Node, tuple[Slot, ...]] = {}

    def leads(self, edges: Iterable[Edge | None]) -> list[tuple[Slot, ...]]:
        """For each edge, the tensors that have come and lead to it."""
        return [() if edge is None else self._behind(edge) for edge in edges]

    def leads_once(self, edges: Iterable[Edge | None]) -> list[tuple[Slot, ...]]:
        """The same; no Node lives longer because of it."""
        length = len(self._leads)
        found = self.leads(edges)
        while len(self._leads) > length:
            self._leads.popitem()
        return found

    def _behind(self, edge: Edge) -> tuple[Slot, ...]:
        node, number = edge
        if isinstance(node, RecvRpcBackward):
            return ((node.message, number),) if node.context_id == self._context_id else ()
        self._visit(node)
        return self._leads[node]

    def _visit(self, node: Node) -> None:
        known, path = self._leads, [node]
        while path:
            node = path[-1]
            length = len(path)
            slots: tuple[Slot, ...] = ()
            for edge in node.next_edges:
                if edge is None:
                    continue
                ahead = edge[0]
                more = known.get(ahead)
                if more is None and type(ahead) is RecvRpcBackward:
                    more = self._behind(edge)
                if more is None:
                    path.append(ahead)
                elif more and more != slots:
                    slots = tuple(dict.fromkeys((*slots, *more))) if slots else more
            if len(path) == length:
                known[path.pop()] = slots
