"""UpstreamWalk: which tensors of messages the Nodes of one host lead back to."""

from __future__ import annotations

from collections.abc import Iterable

from mpgrad.distributed.autograd.rpc_nodes import RecvRpcBackward
from mpgrad.graph.node import Edge, Node
from mpgrad.scheduler.hosts.marking import Slot


class UpstreamWalk:
    """Visits each Node of a context once, whatever is asked and how often.

    Args:
        context_id: messages of other contexts count for nothing.
    """

    def __init__(self, context_id: int) -> None:
        self._context_id = context_id
        self._leads: dict[Node, tuple[Slot, ...]] = {}

    def leads(self, edges: Iterable[Edge | None]) -> list[tuple[Slot, ...]]:
        """For each edge, the tensors that have come and lead to it."""
        found = []
        for edge in edges:
            if edge is not None:
                self._visit(edge.function)
            found.append(() if edge is None else self._behind(edge))
        return found

    def _visit(self, node: Node) -> None:
        known, path = self._leads, [node]
        while path:
            node = path[-1]
            if node in known or isinstance(node, RecvRpcBackward):
                path.pop()
                continue
            ahead = [edge for edge in node.next_edges if edge is not None]
            new = [edge.function for edge in ahead if self._is_new(edge.function)]
            if new:
                path += new
                continue
            path.pop()
            slots: tuple[Slot, ...] = ()
            for edge in ahead:
                more = self._behind(edge)
                if more and more != slots:
                    slots = tuple(dict.fromkeys((*slots, *more))) if slots else more
            known[node] = slots

    def _is_new(self, node: Node) -> bool:
        return node not in self._leads and not isinstance(node, RecvRpcBackward)

    def _behind(self, edge: Edge) -> tuple[Slot, ...]:
        node = edge.function
        if isinstance(node, RecvRpcBackward):
            return ((node.message, edge.input_nr),) if node.context_id == self._context_id else ()
        return self._leads[node]
