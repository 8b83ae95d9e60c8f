"""AbstractNode: the Node type for users: ``isinstance(y.grad_fn, mg.autograd.graph.Node)``."""

from __future__ import annotations

import abc

from mpgrad.autograd.function_nodes.context import FunctionContext
from mpgrad.autograd.function_nodes.stopping import DelayedError, UndefinedGrad
from mpgrad.recording.graph import node


class AbstractNode(abc.ABC):  # noqa: B024 (nothing is left to be implemented)
    """Any step of the backward graph: ``y.grad_fn``, and the ``ctx`` of a custom Function.

    Its subclasses are registered, as in PyTorch; it is no base class. The methods of a Node
    (``name()``, ``next_functions``, ``metadata``, ``register_hook()``, ``register_prehook()``) are
    in ``mpgrad.recording.graph.node``.
    """


for _kind in (node.Node, FunctionContext, DelayedError, UndefinedGrad):
    AbstractNode.register(_kind)
