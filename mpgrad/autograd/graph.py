"""mpgrad.autograd.graph: the public names for inspecting the graph and adding hooks."""

from __future__ import annotations

from mpgrad.autograd.function_nodes.abstract_node import AbstractNode as Node
from mpgrad.autograd.running.multi_grad_hook import (
    register_multi_grad_hook as register_multi_grad_hook,
)
from mpgrad.autograd.running.running_backward import (
    current_graph_task_execution_order as current_graph_task_execution_order,
)
from mpgrad.autograd.running.running_backward import (
    current_graph_task_id as current_graph_task_id,
)
from mpgrad.autograd.running.running_backward import (
    current_graph_task_keep_graph as current_graph_task_keep_graph,
)
from mpgrad.autograd.running.running_backward import queue_callback as queue_callback
from mpgrad.autograd.running.running_backward import (
    will_engine_execute_node as will_engine_execute_node,
)
from mpgrad.recording.dispatch.in_place import increment_version as increment_version
from mpgrad.recording.graph.executing import current_autograd_node as current_autograd_node
from mpgrad.recording.tensors.gradient_edge import GradientEdge as GradientEdge
from mpgrad.recording.tensors.gradient_edge import get_gradient_edge as get_gradient_edge
from mpgrad.recording.tensors.saved_tensor_clones import (
    allow_mutation_on_saved_tensors as allow_mutation_on_saved_tensors,
)
from mpgrad.recording.tensors.saved_tensors_hooks import (
    disable_saved_tensors_hooks as disable_saved_tensors_hooks,
)
from mpgrad.recording.tensors.saved_tensors_hooks import save_on_cpu as save_on_cpu
from mpgrad.recording.tensors.saved_tensors_hooks import saved_tensors_hooks as saved_tensors_hooks

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "current_autograd_node",
    "current_graph_task_execution_order",
    "current_graph_task_id",
    "current_graph_task_keep_graph",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "queue_callback",
    "will_engine_execute_node",
    "save_on_cpu",
    "saved_tensors_hooks",
    "set_warn_on_accumulate_grad_stream_mismatch",
]


def set_warn_on_accumulate_grad_stream_mismatch(enabled: bool) -> None:
    """Do nothing: there is no warning of streams, because a gradient is complete when it is added.

    Args:
        enabled: PyTorch's switch.
    """
