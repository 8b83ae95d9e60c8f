"""Questions of user code inside a backward: its number, its Nodes, the current Node.

Hooks and custom Functions of the client run on the thread that called backward, so they refer to
the innermost backward of their thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpgrad.autograd.running.running_backward import innermost
from mpgrad.recording.graph.node import Node

if TYPE_CHECKING:
    from mpgrad.autograd.freezing.frozen_graph import FrozenGraph


def current_graph_task_id() -> int:
    """The number of the running backward, -1 outside."""
    running = innermost()
    return -1 if running is None else running.id


def current_graph_task_keep_graph() -> bool:
    """Whether the running backward keeps the saved tensors of its Nodes; True outside."""
    running = innermost()
    return running is None or running.frozen is None or running.frozen.keep_graph


def current_graph_task_execution_order() -> list[Node]:
    """The Nodes of the running backward in the order of the serial engine.

    Workers may run independent Nodes in another order, or at once; hooks keep to this one.

    Raises:
        RuntimeError: no backward is running.
    """
    frozen = _executed("_current_graph_task_execution_order")
    return list(dict.fromkeys(frozen.nodes[index].subject for index in frozen.spec.order))


def will_engine_execute_node(node: Any) -> bool:
    """Whether the running backward runs ``node``, or captures its gradient.

    Raises:
        RuntimeError: no backward is running; ``node`` is not a Node; or it is a leaf's Node in
            ``grad()``, where it never runs.
    """
    if not isinstance(node, Node):
        raise RuntimeError(
            f"_will_engine_execute_node expects an grad_fn, but got {type(node).__name__}"
        )
    frozen = _executed("_will_engine_execute_node")
    if frozen.only_captures(node):
        raise RuntimeError(
            "A leaf node was passed to _will_engine_execute_node but we are currently running "
            "autograd.grad(). This is currently not supported."
        )
    return any(member.subject is node for member in frozen.nodes)


def _executed(name: str) -> FrozenGraph:
    """The graph that the innermost backward of this thread executes."""
    running = innermost()
    if running is None or running.frozen is None:
        raise RuntimeError(f"{name} should only be called during the backward pass")
    return running.frozen
