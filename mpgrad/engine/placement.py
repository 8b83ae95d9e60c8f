"""place(): which Nodes workers may run, and which belong to the client, and why."""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.function import Function
from mpgrad.autograd.functions.function_node import FunctionNode
from mpgrad.autograd.nodes.node import Node
from mpgrad.autograd.shipping.decision import Decision, ShippedCode, attributes_reason, decide
from mpgrad.device import CPU
from mpgrad.device_arrays import get_default_device
from mpgrad.dispatch import OperatorNode
from mpgrad.scheduler.graph_spec import ON_CPU


class Where(NamedTuple):
    """Where one Node runs in ``process`` mode."""

    on_client: bool
    reason: str
    code: ShippedCode | None = None


def where(node: Node, runs: bool, spec_on_client: bool) -> Where:
    """Where ``node`` would run, and the reason in plain words."""
    if not runs:
        return Where(False, "passes a finished gradient on")
    if node.has_packed:
        return Where(True, "hooks unpack its saved tensors in the calling process")
    if isinstance(node, FunctionNode):
        return _where_function(node, False, {})
    if spec_on_client:
        return Where(True, "hooks run in the calling process")
    return Where(False, "an operator")


def _where_function(
    node: FunctionNode, keep_graph: bool, decisions: dict[type[Function], Decision]
) -> Where:
    """``decisions`` keeps those of one walk, during which no user code can change anything."""
    if (keep_graph and node.ctx._clears_on_access) or node.ctx._was_accessed:
        return Where(True, "the next backward must find its saved tensors gone, which ctx keeps")
    if get_default_device() is not CPU:
        return Where(True, "new tensors in it come to this thread's default device")
    decision = decisions.get(node.function)
    if decision is None:
        decision = decisions[node.function] = decide(node.function)
    if decision.run_on == "client":
        return Where(True, decision.reason)
    if node.function.run_on is None:
        reason = attributes_reason(vars(node.ctx))
        if reason:
            return Where(True, reason)
    return Where(False, "a Function that reads nothing that could differ", decision.code)


def place(
    frozen: FrozenGraph, *, check_saved: bool = False
) -> tuple[FrozenGraph, dict[int, ShippedCode]]:
    """``frozen`` with ``on_client`` set, and the code of each Function that travels.

    A Node whose saved tensors cannot be read runs in the client, where it fails when its turn comes
    and not before: hooks ahead of it run, Nodes ahead of it let go of what they saved.

    Args:
        frozen: the graph.
        check_saved: find such Nodes in every case; else only where user code runs in the graph.
    """
    code: dict[int, ShippedCode] = {}
    moved: dict[int, Where] = {}
    decisions: dict[type[Function], Decision] = {}
    for index, node in enumerate(frozen.nodes):
        if isinstance(node, FunctionNode) and frozen.runs[index] and not node.has_packed:
            found = _where_function(node, frozen.keep_graph, decisions)
            if found.code is not None:
                code[index] = found.code
            if found.on_client:
                moved[index] = found
    if check_saved or moved or any(spec.on_client for spec in frozen.spec.nodes):
        for index, node in enumerate(frozen.nodes):
            if frozen.runs[index] and not node.has_packed and not _is_readable(node):
                moved[index] = Where(True, "its saved tensors cannot be read")
    if not moved:
        return frozen, code
    specs = tuple(
        spec._replace(on_client=True, device=ON_CPU) if index in moved else spec
        for index, spec in enumerate(frozen.spec.nodes)
    )
    return frozen._replace(spec=frozen.spec._replace(nodes=specs), remembered=None), code


def _is_readable(node: Node) -> bool:
    """Whether what ``node`` saved is still there, and as it was."""
    try:
        if isinstance(node, OperatorNode):
            node.saved_arrays()
        elif isinstance(node, FunctionNode):
            node.portable_context()
    except RuntimeError:
        return False
    return True
