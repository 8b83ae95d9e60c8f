"""SendRpcBackward and RecvRpcBackward: where a graph leaves a host, and where it comes in.

Whoever sends tensors records the first: in the backward it is a root, whose gradients arrive.
Whoever receives them records the second: it is a leaf, whose gradients leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mpgrad.autograd.running.running_backward import RunningBackward, innermost
from mpgrad.base.thread_state import PerThread
from mpgrad.recording.graph.node import SEQUENCE_NR_MAX, Edge, InputMetadata, Node

PREFIX = "torch::distributed::autograd::"


class RunsPart(Protocol):
    """What runs this host's part of a backward."""

    running: RunningBackward

    def send_gradients(self, node: RecvRpcBackward, grads: list[Any]) -> None: ...


class _PartOfThread(PerThread):
    """The part that this thread runs."""

    part: RunsPart | None = None


CURRENT = _PartOfThread()


class SendRpcBackward(Node):
    """Some tensors went to another host; its edges lead to their Nodes, by slot."""

    __slots__ = ("message", "to", "what")

    prefix = PREFIX

    def __init__(
        self,
        edges: Sequence[Edge],
        metadata: Sequence[InputMetadata],
        message: int,
        to: int,
        what: str,
    ) -> None:
        super().__init__(edges, metadata)
        self.message, self.to, self.what = message, to, what


class ArrivingGradients(Node):
    """Stands for a SendRpcBackward in one backward: its rule waits for the message's gradients.

    Args:
        send: that Node.
        slots: the tensors that will get a gradient.
        take: waits; gives an array or None for each slot of the message.
    """

    __slots__ = ("send", "take")

    prefix = PREFIX
    takes_undefined = True
    runs_on_client = True

    def __init__(
        self, send: SendRpcBackward, slots: Sequence[int], take: Callable[[int], Sequence[Any]]
    ) -> None:
        edges = [edge if nr in slots else None for nr, edge in enumerate(send.next_edges)]
        super().__init__(edges, send.input_metadata, send.sequence_nr)
        self.send, self.take = send, take

    @property
    def subject(self) -> Node:
        return self.send

    @property
    def label(self) -> str:
        return self.send.label

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        arrays = self.take(self.send.message)
        return [grad if needed else None for grad, needed in zip(arrays, needs, strict=True)]


class RecvRpcBackward(Node):
    """Some tensors came from another host; its inputs are their gradients, by slot.

    Its rule calls no user code, and others wait for what it sends: so it runs as soon as it can,
    like AccumulateGrad.

    Attributes:
        context_id: the context of the message.
        message: that brought them.
        origin: the rank that sent them.
        position: the number that it would have in the order of recording.
    """

    __slots__ = ("context_id", "message", "origin", "position")

    prefix = PREFIX
    takes_undefined = True
    runs_on_client = True

    def __init__(self, context_id: int, message: int, origin: int, position: int) -> None:
        super().__init__((), (), SEQUENCE_NR_MAX)
        self.context_id, self.message, self.origin = context_id, message, origin
        self.position = position

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        part = CURRENT.part
        if part is None or part.running is not innermost():
            raise RuntimeError(
                f"this graph goes on at rank {self.origin}, in the autograd context "
                f"{self.context_id}: call mpgrad.distributed.autograd.backward(context_id, roots) "
                "instead of backward() or grad()"
            )
        part.send_gradients(self, grads)
        return []


def recorded_at(node: Node) -> int:
    """The place of a Node in the order of recording; -1 for a leaf's, which has none."""
    if isinstance(node, RecvRpcBackward):
        return node.position
    return -1 if node.sequence_nr == SEQUENCE_NR_MAX else node.sequence_nr
