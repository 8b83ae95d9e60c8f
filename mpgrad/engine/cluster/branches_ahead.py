"""BranchesAhead: in a backward in this process, branches on hosts are differentiated side by side.

The Nodes run in serial order, so sums have their order, too. But a branch goes to its host as soon
as its gradient is complete, which is long before its turn: then its Node takes what has come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.autograd.running.deferred_interrupts import GRACE_MS
from mpgrad.calls.branch_gradients import gradients_by_number
from mpgrad.calls.call import Derivative
from mpgrad.calls.fork_function import arrays_to_send, holder_of
from mpgrad.calls.own_tensors import LIBRARY
from mpgrad.engine.calls_in_workers import Answered, Request, depth_of_calls
from mpgrad.engine.cluster.host_calls import HostCalls
from mpgrad.engine.cluster.host_in_use import SLOTS
from mpgrad.engine.local import run_local_ahead
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import Submission
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.wire.captured_state import capture_state

Array: TypeAlias = np.ndarray[Any, Any]

#: What comes of a branch: its gradients.
Flight: TypeAlias = Future[list[Tensor | None]]

#: The bytes between two results.
_PADDING = 64


def has_branches_on_hosts(frozen: FrozenGraph) -> bool:
    """Whether hosts of a cluster have recorded branches of a graph."""
    return any(holder_of(node) >= SLOTS for node in frozen.nodes)


def run_with_hosts(frozen: FrozenGraph, calls: HostCalls) -> list[tuple[Any, bool]]:
    """``run_local`` of a graph with branches on hosts."""
    ahead = BranchesAhead(frozen, calls)
    try:
        return run_local_ahead(frozen, ahead.before)
    except BaseException as error:
        ahead.stop(None if isinstance(error, Exception) else GRACE_MS)
        raise


class BranchesAhead:
    """The branches of one graph that hosts differentiate.

    Args:
        frozen: the graph.
        calls: of the hosts.
    """

    def __init__(self, frozen: FrozenGraph, calls: HostCalls) -> None:
        self._frozen, self._calls = frozen, calls
        self._begun: list[tuple[Submission, Flight, dict[str, Any]]] = []
        nodes, spec = frozen.nodes, frozen.spec
        complete_at = {
            at: 0 for at, node in enumerate(nodes) if frozen.runs[at] and holder_of(node) >= SLOTS
        }
        for position, at in enumerate(spec.order):
            for edge in spec.nodes[at].edges:
                if edge is not None and edge[0] in complete_at:
                    complete_at[edge[0]] = position + 1
        #: By the position before which their gradients are complete.
        self._waiting: dict[int, list[int]] = defaultdict(list)
        for at in spec.order:
            if at in complete_at:
                self._waiting[complete_at[at]].append(at)

    def before(self, position: int, sums_of: Callable[[int], Sequence[Any]]) -> None:
        """The Node at ``position`` runs next; ``sums_of`` gives what has flowed into one."""
        count = len(self._begun)
        for at in self._waiting.pop(position, ()):
            node = self._frozen.nodes[at]
            if isinstance(node, FunctionNode):
                needs = [edge is not None for edge in self._frozen.spec.nodes[at].edges[1:]]
                self._begin(node, sums_of(at), tuple(needs))
        if begun := [submission for submission, _, _ in self._begun[count:]]:
            self._calls.submit_all(begun)

    def _begin(self, node: FunctionNode, grads: Sequence[Any], needs: tuple[bool, ...]) -> None:
        ctx = node.ctx
        try:
            inputs = arrays_to_send(node)
        except RuntimeError:
            return  # its Node raises that in its turn
        given = [(n, one) for n, one in zip(ctx.wanted, grads, strict=True) if one is not None]
        with no_grad():
            modes = LIBRARY.modes()
        kinds = [LIBRARY.kind(Tensor(grad), False, "") for _, grad in given]
        wanted = tuple([number for number, _ in given])
        task = Derivative(ctx.call, ctx.digest, wanted, tuple(kinds), needs, (), modes)
        sizes = [0 if one is None else one.nbytes + _PADDING for one in inputs]
        room = sum([size for size, need in zip(sizes, needs, strict=True) if need])
        found: Flight = Future()
        submission = Submission(
            [Request(task, [*inputs, *[grad for _, grad in given]], room, ctx.lifetime.slot)],
            capture_state(),
            PackedArrays(),
            depth_of_calls(),
            found.set_running_or_notify_cancel,
            partial(_end, found, len(needs)),
        )
        ctx.flight = found.result
        self._begun.append((submission, found, vars(ctx)))

    def stop(self, grace_ms: int | None) -> None:
        """Nobody will ask for what has begun."""
        for submission, found, attributes in self._begun:
            attributes.pop("flight", None)
            if not found.done():  # the Node that waited for it has taken its flight
                self._calls.stop(submission, grace_ms)


def _end(found: Flight, count: int, answered: Sequence[Answered] | BaseException) -> None:
    if isinstance(answered, BaseException):
        found.set_exception(answered)
        return
    answer, data, _ = answered[0]
    opened = [LIBRARY.opened(told, data) for told in answer.outputs]
    found.set_result(gradients_by_number(LIBRARY, answer.result, opened, count))
