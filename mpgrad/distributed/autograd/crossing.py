"""How tensors take their history along to another host: as slots of a message.

The sender pickles a tensor that requires grad as (slot, its values) and records a SendRpcBackward;
the receiver makes it a result of its RecvRpcBackward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mpgrad.base.context_manager import contextmanager
from mpgrad.base.thread_state import PerThread
from mpgrad.distributed.autograd.contexts import Contexts, DistAutogradContext
from mpgrad.distributed.autograd.rpc_nodes import RecvRpcBackward, SendRpcBackward, recorded_at
from mpgrad.distributed.states.upstream import Upstream
from mpgrad.nn.module import Module
from mpgrad.recording.graph.node import continue_sequence_from, upcoming_sequence_nr
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge, gradient_metadata

#: In place of the number of a message: none of its tensors requires grad.
NO_MESSAGE = -1


class Recorded(NamedTuple):
    """What is known of a message that leaves: its number, or NO_MESSAGE; and its tensors' past."""

    message: int
    upstream: tuple[Upstream, ...]


class Departure:
    """The tensors of a message that is being pickled.

    Args:
        context: in which it is sent; None: tensors go without their history.
        to: the rank that it goes to.
    """

    def __init__(self, context: DistAutogradContext | None, to: int) -> None:
        self._context, self._to = context, to
        self._tensors: list[Tensor] = []
        #: The parameters of modules that travel: they are leaves of the copies.
        self._stay: set[int] = set()

    def reduced(self, obj: Any) -> tuple[Any, ...] | None:
        """How a tensor that requires grad travels; None for other objects."""
        if isinstance(obj, Module):
            # Submodules come here, too.
            self._stay.update(map(id, obj._parameters.values()))
        if self._context is None or not isinstance(obj, Tensor) or not obj.requires_grad:
            return None
        if id(obj) in self._stay:
            return None
        self._tensors.append(obj)
        bare = Tensor(obj._array, version_counter=obj._version_counter)
        return _arrived, (len(self._tensors) - 1, bare)

    def record(self, contexts: Contexts, what: str, message: int = NO_MESSAGE) -> Recorded:
        """Record that they leave.

        Args:
            what: the message is, for errors.
            message: its number; by default a new one.
        """
        if self._context is None or not self._tensors:
            return Recorded(NO_MESSAGE, ())
        edges = [gradient_edge(tensor) for tensor in self._tensors]
        # Whatever thread has made them: nothing that was recorded before comes after.
        continue_sequence_from(1 + max(recorded_at(node) for node, _ in edges))
        metadata = [gradient_metadata(tensor) for tensor in self._tensors]
        message = contexts.new_message() if message == NO_MESSAGE else message
        node = SendRpcBackward(edges, metadata, message, self._to, what)
        return Recorded(message, self._context.add_send(node))


class _Arrival(PerThread):
    #: The Node of the message that this thread unpickles, and the metadata of its tensors.
    node: RecvRpcBackward | None = None
    tensors: dict[int, Tensor]


_arrival = _Arrival()


@contextmanager
def arriving(context: DistAutogradContext | None, message: int, origin: int) -> Iterator[None]:
    """Unpickle a message of rank ``origin`` in here: its tensors belong to ``context``.

    If the context is no more, they are tensors without history.
    """
    before = dict(vars(_arrival))
    node: RecvRpcBackward | None = None
    tensors: dict[int, Tensor] = {}
    if context is not None and message != NO_MESSAGE:
        node = RecvRpcBackward(context.id, message, origin, upcoming_sequence_nr())
    _arrival.node, _arrival.tensors = node, tensors
    try:
        yield
    finally:
        vars(_arrival).clear()
        vars(_arrival).update(before)
    if context is not None and node is not None:
        node.input_metadata = tuple(gradient_metadata(tensors[nr]) for nr in range(len(tensors)))
        context.add_recv(node)


def _arrived(slot: int, tensor: Tensor) -> Tensor:
    if _arrival.node is None:
        return tensor
    made = Tensor(tensor._array, requires_grad=True, grad_fn=_arrival.node, output_nr=slot)
    _arrival.tensors[slot] = made
    return made
