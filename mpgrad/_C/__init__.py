"""Where code that was written for PyTorch reaches into the engine: ``torch._C`` by its names.

New code finds all of it in ``mpgrad.autograd`` and ``mpgrad.autograd.graph``.
"""

from __future__ import annotations

import mpgrad.tensor_methods  # noqa: F401  (Tensor is complete after it)
from mpgrad._C import _autograd as _autograd
from mpgrad._C import _functions as _functions
from mpgrad.autograd.grad_mode import is_grad_enabled as is_grad_enabled
from mpgrad.autograd.nodes.executing import current_autograd_node as _current_autograd_node
from mpgrad.autograd.running.graph_task import (
    current_graph_task_execution_order as _current_graph_task_execution_order,
)
from mpgrad.autograd.running.graph_task import current_graph_task_id as _current_graph_task_id
from mpgrad.autograd.running.graph_task import will_engine_execute_node as _will_engine_execute_node

__all__ = [
    "_autograd",
    "_current_autograd_node",
    "_current_graph_task_execution_order",
    "_current_graph_task_id",
    "_functions",
    "_will_engine_execute_node",
    "is_grad_enabled",
]
