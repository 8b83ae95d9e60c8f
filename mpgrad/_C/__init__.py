"""The names of ``torch._C`` by which code written for PyTorch uses the engine.

No code that new programs need: ``mpgrad.autograd`` and ``mpgrad.autograd.graph`` have all of them.
Begin with ``_autograd``.
"""

from __future__ import annotations

import mpgrad.tensor_methods  # noqa: F401  (Tensor is complete after it)
from mpgrad._C import _autograd as _autograd
from mpgrad._C import _functions as _functions
from mpgrad.autograd.running.running_backward import current_graph_task_execution_order
from mpgrad.autograd.running.running_backward import (
    current_graph_task_id as _current_graph_task_id,
)
from mpgrad.autograd.running.running_backward import (
    will_engine_execute_node as _will_engine_execute_node,
)
from mpgrad.recording.graph.executing import current_autograd_node as _current_autograd_node
from mpgrad.recording.graph.grad_modes import is_grad_enabled as is_grad_enabled
from mpgrad.recording.graph.grad_modes import is_multithreading_enabled, set_grad_enabled
from mpgrad.recording.graph.node import Node

__all__ = [
    "_autograd",
    "_current_autograd_node",
    "_current_graph_task_execution_order",
    "_current_graph_task_id",
    "_functions",
    "_set_grad_enabled",
    "_will_engine_execute_node",
    "is_grad_enabled",
]


def _set_grad_enabled(enabled: bool) -> None:
    """Record operators in this thread, or not.

    Raises:
        TypeError: ``enabled`` is not a bool.
    """
    set_grad_enabled(enabled)


def _current_graph_task_execution_order() -> list[Node]:
    """The Nodes of the running backward in the order in which they run, one after another.

    Raises:
        RuntimeError: no backward is running, or its Nodes may run in parallel
            (``mg.autograd.graph.current_graph_task_execution_order`` then has their order).
    """
    order = current_graph_task_execution_order()
    if is_multithreading_enabled():
        raise RuntimeError(
            "_current_graph_task_execution_order expects the current backward to be executed with "
            "multithreading disabled, e.g. by running: with "
            "mg.autograd.set_multithreading_enabled(False): ..."
        )
    return order
