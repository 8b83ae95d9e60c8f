"""mpgrad.autograd.graph: the public names for looking at the graph and hooking into it."""

from __future__ import annotations

from mpgrad.autograd.gradient_edge import GradientEdge as GradientEdge
from mpgrad.autograd.gradient_edge import get_gradient_edge as get_gradient_edge
from mpgrad.autograd.node import Node as Node
from mpgrad.autograd.running import queue_callback as queue_callback

__all__ = [
    "GradientEdge",
    "Node",
    "get_gradient_edge",
    "queue_callback",
]
