"""The autograd contexts that this process knows: what crossed hosts in each, and its gradients.

UpstreamWalk: which tensors of messages the Nodes of one host lead back to.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from mpgrad.base.context_manager import contextmanager
from mpgrad.base.thread_state import PerThread
from mpgrad.distributed.autograd.rpc_nodes import RecvRpcBackward, SendRpcBackward
from mpgrad.distributed.states.context_state import ContextState, Loss, ReleasedContexts
from mpgrad.distributed.states.marking import Reached, Slot
from mpgrad.distributed.states.upstream import NUMBER_BITS, KnownUpstream, Upstream, upstream_of
from mpgrad.errors import HostLost
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.graph.node import Edge, Node
from mpgrad.recording.tensors.tensor import Tensor


class DistAutogradContext:
    """One context in this process. Thread-safe.

    Args:
        context_id: unique among all processes.
        rank: of this process.
    """

    def __init__(self, context_id: int, rank: int) -> None:
        self.id = context_id
        self.state = ContextState(rank)
        #: Held by a thread that runs a backward: one at a time, as they begin.
        self.one_at_a_time = threading.RLock()
        self._lock = threading.RLock()
        self._sends: dict[int, SendRpcBackward] = {}
        self._recvs: dict[int, RecvRpcBackward] = {}
        self._gradients: dict[Tensor, Tensor] = {}
        self._walk, self._upstream = UpstreamWalk(context_id), KnownUpstream()
        #: The backwards that run here, by their ids (``local_part.LocalPart``).
        self.parts: dict[tuple[int, int], Any] = {}
        #: By number, the calls of this process that can be made again if their callees die, and
        #: those that are (``OwnCalls``).
        self.answered: dict[int, Any] = {}
        self.repeated: dict[int, Any] = {}
        #: The process whose calls were made again; None: none has died.
        self.mended: Loss | None = None
        #: Whether a model has averaged gradients that do not count yet.
        self.has_averaged = False

    # ------------------------------------------------------------------ what is recorded

    def add_send(self, node: SendRpcBackward) -> tuple[Upstream, ...]:
        """Tensors that require grad leave with a message; what it tells about their past."""
        with self._lock:
            self._sends[node.message] = node
            self._upstream.add(upstream_of(node.message, self._walk.leads(node.next_edges)))
            return self._upstream.untold(node.to, node.message)

    def add_recv(self, node: RecvRpcBackward) -> None:
        """Such tensors have come."""
        with self._lock:
            self._recvs[node.message] = node

    def has_sent(self, message: int) -> bool:
        """Whether this process has sent a message in the context."""
        with self._lock:
            return message in self._sends

    def sends(self) -> dict[int, SendRpcBackward]:
        """By message."""
        with self._lock:
            return dict(self._sends)

    def learn(self, sender: int, told: Iterable[Upstream]) -> None:
        """What a message of ``sender`` tells about the past of its tensors."""
        with self._lock:
            self._upstream.learn(sender, told)

    def marks(self, roots: Iterable[Edge]) -> Reached | None:
        """What a backward of ``roots`` marks, by the rank that has sent it; None: not known."""
        with self._lock:
            begin = [slot for slots in self._walk.leads_once(roots) for slot in slots]
            return self._upstream.marks(begin)

    # ------------------------------------------------------------------ gradients

    def sums_with(self, gradients: Iterable[tuple[Tensor, Tensor]]) -> dict[Tensor, Tensor]:
        """By leaf, what the context would hold with the gradients of another backward."""
        with self._lock, no_grad():
            sums = dict(self._gradients)
            for variable, gradient in gradients:
                before = sums.get(variable)
                sums[variable] = gradient if before is None else before + gradient
        return sums

    def accumulate(
        self, gradients: list[tuple[Tensor, Tensor]], averages: dict[Tensor, Tensor]
    ) -> None:
        """Add the gradients of a backward; earlier results of ``get_gradients`` do not change.

        Args:
            gradients: of leaves.
            averages: of some leaves, over the ranks of a model; they take the place of the sums.
        """
        sums = self.sums_with(gradients) | averages
        with self._lock:
            self._gradients = sums
        self.has_averaged = False
        self.answered.clear()  # a death is a loss of gradients from now on

    def gradients(self) -> dict[Tensor, Tensor]:
        """By leaf, all that were added."""
        with self._lock:
            return dict(self._gradients)

    # ------------------------------------------------------------------ PyTorch's names

    def _context_id(self) -> int:
        return self.id

    def _send_functions(self) -> dict[int, SendRpcBackward]:
        return self.sends()

    def _recv_functions(self) -> dict[int, RecvRpcBackward]:
        with self._lock:
            return dict(self._recvs)

    def _known_worker_ids(self) -> set[int]:
        return set(self.state.hosts)


class Contexts:
    """All contexts of this process. Thread-safe.

    Args:
        rank: of this process.
        first: its numbers of contexts and messages begin here.
    """

    def __init__(self, rank: int, first: int = 0) -> None:
        self.rank = rank
        self._lock = threading.RLock()
        self._contexts: dict[int, DistAutogradContext] = {}
        #: Whether another process had this rank before.
        self.is_successor = first > 0
        self._released = ReleasedContexts()
        self._ids = itertools.count((rank << NUMBER_BITS) + first)
        self._messages = itertools.count((rank << NUMBER_BITS) + first)

    def new(self) -> DistAutogradContext:
        """A context of this process."""
        with self._lock:
            number = next(self._ids)
            made = self._contexts[number] = DistAutogradContext(number, self.rank)
        return made

    def new_message(self) -> int:
        """A number for a message that no other has."""
        return next(self._messages)

    def find(self, context_id: int) -> DistAutogradContext:
        """The context of that number.

        Raises:
            RuntimeError: it was left, or nobody has used it here.
            HostLost: a host that it spans has died.
        """
        found = self.known(context_id)
        if found is not None:
            return found
        loss = self.loss(context_id)
        if loss is not None:
            raise HostLost(*loss, f"autograd context {context_id}", of_calls=True)
        raise RuntimeError(f"Could not find autograd context with id: {context_id}")

    def loss(self, context_id: int) -> Loss | None:
        """The loss that has ended a context; None if it was left, or is not known."""
        with self._lock:
            return self._released.loss(context_id)

    def known(self, context_id: int) -> DistAutogradContext | None:
        """The context of that number; None if it is no more, or has never been here."""
        with self._lock:
            return self._contexts.get(context_id)

    def find_or_add(self, context_id: int) -> DistAutogradContext | None:
        """The context of that number, made where a call brings it; None if it is no more."""
        with self._lock:
            found = self._contexts.get(context_id)
            if found is None and context_id not in self._released:
                found = DistAutogradContext(context_id, self.rank)
                self._contexts[context_id] = found
            return found

    def remove(self, context_id: int, loss: Loss | None = None) -> DistAutogradContext | None:
        """The context is no more, perhaps since a process was lost."""
        with self._lock:
            self._released.add(context_id, loss)
            return self._contexts.pop(context_id, None)

    def of_this_thread(self) -> DistAutogradContext | None:
        """The context in which this thread records; None if there is none, or it is no more."""
        context = CURRENT.context
        return None if context is None else self.known(context.id)

    def all(self) -> list[DistAutogradContext]:
        """Those that are there."""
        with self._lock:
            return list(self._contexts.values())


# ---------------------------------------------------------------------------- of this thread


class _ContextOfThread(PerThread):
    """The context in which this thread records what crosses hosts."""

    context: DistAutogradContext | None = None


CURRENT = _ContextOfThread()


@contextmanager
def recording_in(context: DistAutogradContext | None) -> Iterator[None]:
    """Record in ``context`` what crosses hosts on this thread."""
    before, CURRENT.context = CURRENT.context, context
    try:
        yield
    finally:
        CURRENT.context = before


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
