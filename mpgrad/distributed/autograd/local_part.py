"""LocalPart: what one host does in one backward: it marks, runs its GraphTask, keeps the result.

The GraphTask is an ordinary one. Where a gradient comes from another host, its rule waits
(:class:`ArrivingGradients`). Since numbers travel with calls, the serial order of each host is a
part of one order of all hosts: what a rule waits for never waits for this host's later rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpgrad.autograd.commit import results, results_alone
from mpgrad.autograd.frozen_graphs import costs
from mpgrad.autograd.frozen_graphs.cached_graphs import walk
from mpgrad.autograd.frozen_graphs.freeze import freeze
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, KeptSink, ResultSink, WantedSink
from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.hook_nodes import runs_node_hooks
from mpgrad.autograd.running.running_backward import RunningBackward
from mpgrad.distributed.autograd.contexts import DistAutogradContext
from mpgrad.distributed.autograd.rpc_nodes import CURRENT, ArrivingGradients, RecvRpcBackward
from mpgrad.distributed.operation import WaitUntil
from mpgrad.distributed.reducer import reducers_of
from mpgrad.distributed.rpc.call_pickles import packed, unpacked
from mpgrad.distributed.states.context_state import PassId
from mpgrad.distributed.states.marking import Slot
from mpgrad.errors import HostLost
from mpgrad.recording.graph.node import Edge, Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge

#: Seconds after which a part that waits says so: perhaps nobody will send what it waits for.
PATIENCE_S = 0.5


class PartStopped(Exception):
    """The backward has ended elsewhere: this host's part is of no use any more."""


class LocalPart:
    """This host's part of one backward.

    Args:
        context: to which it belongs.
        backward: its id.
        is_smart: SMART, not FAST.
        send: takes the message, the rank, and the frames of gradients.
        wait: is told the message that this part waits for, once it has waited for a while.
        wait_until: waits for what a message brings.
        roots, seeds: of ``backward()``, at its host.
        inputs: the tensors whose gradients count; None: all leaves.
    """

    def __init__(
        self,
        context: DistAutogradContext,
        backward: PassId,
        *,
        is_smart: bool,
        send: Callable[[LocalPart, RecvRpcBackward, list[Any]], None],
        wait: Callable[[LocalPart, int], None],
        wait_until: WaitUntil,
        roots: Sequence[Edge] = (),
        seeds: Sequence[Tensor | None] = (),
        inputs: Sequence[Tensor] | None = None,
        keep_graph: bool = False,
    ) -> None:
        self.context, self.id, self.is_smart = context, backward, is_smart
        self.keep_graph, self.inputs = keep_graph, inputs
        self._send, self._wait, self._wait_until = send, wait, wait_until
        self._roots, self._seeds = roots, seeds
        self._reached: set[Any] = set()
        self._marks: dict[int, set[int]] = {}
        self._arrived: dict[int, list[Any]] = {}
        self._is_stopped = False
        self.running = RunningBackward(is_partial=inputs is not None)
        #: What it has computed: a frozen graph with its captures, whose results belong to these
        #: tensors; and the gradients that hooks of leaves have seen.
        self._captured: tuple[FrozenGraph, list[tuple[Any, bool]]] | None = None
        self._tensors: list[Tensor] = []
        self._kept: list[tuple[Tensor, Tensor]] = []
        #: What DistributedDataParallel has made of these and of the context's earlier gradients.
        self._averages: dict[Tensor, Tensor] = {}
        #: At the root: its own part may begin, or everything has ended.
        self.may_run, self.has_ended = threading.Event(), threading.Event()
        #: At the root: how it has ended; by host, the errors of parts.
        self.end: Any = None
        self.errors: dict[int, BaseException] = {}
        self.waits: dict[int, str] = {}
        #: At the root, the rank whose death has ended it, so that another backward takes its place;
        #: in that one, the same rank. -1 for none.
        self.ended_by = self.follows = -1
        #: The graph was kept for such a case alone: it is freed once the gradients count.
        self.frees = False
        #: Whether other hosts take part.
        self.spans_hosts = False

    @property
    def is_root(self) -> bool:
        """Whether ``backward()`` was called in this process."""
        return self.id[0] == self.context.state.rank

    def begin_as(self, *, keep_graph: bool, is_partial: bool, follows: int) -> None:
        """Take over the options of ``backward()``."""
        self.follows = follows
        self.keep_graph = keep_graph
        if is_partial:
            self.inputs = ()
            self.running.is_partial = True

    def described(self, message: int) -> str:
        """The gradients of a message, in words."""
        send = self.context.sends().get(message)
        return "gradients" if send is None else f"the gradients of {send.what}, of rank {send.to}"

    # ------------------------------------------------------------------ marking

    def mark(self, slots: Iterable[Slot]) -> None:
        """These tensors that this host has sent will get gradients; so will all behind them.

        Raises:
            KeyError: it has sent no such message in this context.
        """
        sends = self.context.sends()
        for message, nr in slots:
            self._mark(sends, message, nr)

    def reach_from_roots(self) -> dict[int, list[Slot]]:
        """What the roots lead to on other hosts, by their rank."""
        return self._reach(list(self._roots))

    def reach_from_slots(self, slots: Sequence[Slot]) -> dict[int, list[Slot]]:
        """The same, from tensors that this host has sent.

        Raises:
            KeyError: it has sent no such message in this context.
        """
        sends = self.context.sends()
        edges = [edge for message, nr in slots if (edge := self._mark(sends, message, nr))]
        return self._reach(edges)

    def _mark(self, sends: dict[int, Any], message: int, slot: int) -> Edge | None:
        marked = self._marks.setdefault(message, set())
        if slot in marked:
            return None
        edge: Edge = sends[message].next_edges[slot]
        marked.add(slot)
        return edge

    def _reach(self, edges: list[Edge]) -> dict[int, list[Slot]]:
        found: dict[int, list[Slot]] = {}
        sends, rank = self.context.sends(), self.context.state.rank
        while edges:
            node, input_nr = edges.pop()
            if not isinstance(node, RecvRpcBackward):
                if node not in self._reached:
                    self._reached.add(node)
                    edges += [edge for edge in node.next_edges if edge is not None]
                continue
            slot = node.message, input_nr
            if slot in self._reached:
                continue
            self._reached.add(slot)
            self._require_own(node)
            if node.origin != rank:
                found.setdefault(node.origin, []).append(slot)
            elif edge := self._mark(sends, *slot):
                edges.append(edge)
        return found

    def _require_own(self, node: RecvRpcBackward) -> None:
        if node.context_id != self.context.id:
            raise RuntimeError(
                f"a tensor that came in autograd context {node.context_id} is used in a backward "
                f"of context {self.context.id}"
            )

    # ------------------------------------------------------------------ the GraphTask

    def run(self) -> None:
        """Run it, on this thread.

        Raises:
            PartStopped: the backward has ended elsewhere.
            Exception: what a rule or hook has raised.
        """
        arrivals = [
            ArrivingGradients(send, slots, self._take) for send, slots in self._awaited_sends()
        ]
        roots = [*self._roots, *((node, 0) for node in arrivals)]
        seeds = [*self._seeds, *(None for _ in arrivals)]
        wanted = self._wanted(walk(roots).nodes)
        if not wanted:
            return
        engine = engine_slot.current()
        frozen = freeze(
            roots, seeds, wanted=wanted, keep_graph=self.keep_graph, cost=costs.estimate
        )
        arrays = tuple(None if seed is None else seed._array for seed in frozen.seeds)
        before, CURRENT.part = CURRENT.part, self
        try:
            with self.running:
                captured = engine_slot.execute(engine, frozen._replace(seeds=arrays))
        finally:
            CURRENT.part = before
        self._captured = frozen, captured
        self._average(frozen, captured)

    def _average(self, frozen: FrozenGraph, captured: list[tuple[Any, bool]]) -> None:
        leaves = [*self._tensors, *[leaf for leaf, _ in self._kept]]
        reducers = reducers_of(leaves)
        if not reducers:
            return
        if self.follows >= 0 and self.context.has_averaged:
            cause = "the context is over: DistributedDataParallel had averaged, which is done once"
            raise HostLost(self.follows, cause, f"context {self.context.id}", of_calls=True)
        self.context.has_averaged = True
        new = self._kept + self._of_tensors(results_alone(frozen, captured, len(self._tensors)))
        before = self.context.sums_with(new)
        after = dict(before)
        for reducer in reducers:
            reducer.average_in_context([leaf for leaf, _ in new], after)
        self._averages = {leaf: it for leaf, it in after.items() if it is not before.get(leaf)}

    def take_gradients(self) -> None:
        """All parts are done: what this one has computed becomes the context's."""
        gradients = self._kept
        if self._captured is not None:
            gradients += self._of_tensors(results(*self._captured, len(self._tensors)))
        self.context.accumulate(gradients, self._averages)
        if self.frees and self._captured is not None:
            for node in self._captured[0].nodes:
                node.release_saved()

    def _of_tensors(self, found: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
        return [
            (tensor, gradient)
            for tensor, gradient in zip(self._tensors, found, strict=True)
            if gradient is not None
        ]

    def _awaited_sends(self) -> list[tuple[Any, Sequence[int]]]:
        """The sends that get gradients, the last one first, and their slots."""
        sends = sorted(self.context.sends().values(), key=_order, reverse=True)
        if not self.is_smart:
            return [(send, range(len(send.next_edges))) for send in sends]
        return [
            (send, sorted(self._marks[send.message])) for send in sends if self._is_marked(send)
        ]

    def _is_marked(self, send: Any) -> bool:
        return send.message in self._marks

    def _wanted(self, nodes: Sequence[Node]) -> list[tuple[Edge, WantedSink]]:
        """Leaves or inputs, and all that came from other hosts, which has to run."""
        wanted: list[tuple[Edge, WantedSink]] = []
        for node in nodes:
            if isinstance(node, RecvRpcBackward):
                self._require_own(node)
                wanted.append(((node, 0), None))
            elif isinstance(node, AccumulateGrad) and self.inputs is None:
                wanted.append(((node, 0), self._sink(node, node.variable)))
        for tensor in self.inputs or ():
            edge = gradient_edge(tensor)
            wanted.append((edge, self._sink(edge[0], tensor)))
        return wanted

    def _sink(self, node: Node, tensor: Tensor) -> WantedSink:
        if isinstance(node, AccumulateGrad) and runs_node_hooks(node):
            return KeptSink(node, self._keep)
        self._tensors.append(tensor)
        return ResultSink(len(self._tensors) - 1)

    def _keep(self, leaf: Tensor, gradient: Tensor) -> None:
        """What the hooks of a leaf have made of its gradient."""
        self._kept.append((leaf, gradient))

    # ------------------------------------------------------------------ gradients of other hosts

    def arrive(self, message: int, frames: list[Any]) -> None:
        """The gradients of a message have come, at this moment or before its rule asks for them."""
        self._arrived.setdefault(message, frames)

    def stop(self) -> None:
        """Nobody needs this part any more."""
        self._is_stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether nobody needs it."""
        return self._is_stopped

    def _take(self, message: int) -> list[Any]:
        if not self._wait_until(lambda: self._is_ready(message), PATIENCE_S):
            self._wait(self, message)
            self._wait_until(lambda: self._is_ready(message), None)
        if self._is_stopped:
            raise PartStopped
        frames = self._arrived.pop(message)
        return [None if tensor is None else tensor._array for tensor in unpacked(frames)]

    def _is_ready(self, message: int) -> bool:
        return self._is_stopped or message in self._arrived

    def send_gradients(self, node: RecvRpcBackward, grads: list[Any]) -> None:
        """Called by the rule of a RecvRpcBackward: they go to where its tensors came from."""
        if self._is_stopped:
            raise PartStopped
        tensors = [None if grad is None else Tensor(grad) for grad in grads]
        what = f"the gradients of a message of rank {node.origin}"
        self._send(self, node, packed(tensors, what, same_main=True, reduce=lambda _: None))


def _order(send: Any) -> tuple[int, int]:
    return send.sequence_nr, send.message
