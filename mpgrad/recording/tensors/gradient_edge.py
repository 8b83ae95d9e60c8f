"""GradientEdge: a place in the graph that users can keep without keeping a tensor."""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge


class GradientEdge(NamedTuple):
    """Where a tensor's gradient flows: input ``output_nr`` of ``node``.

    ``backward()`` and ``grad()`` take it as a root and as an input. It keeps the place even if the
    tensor is later changed in place or deleted.

    Attributes:
        node: the tensor's grad_fn, or its AccumulateGrad if it is a leaf.
        output_nr: the number of the tensor among the outputs of the recorded operation.
        ownership_token: None. In PyTorch it keeps the Node of a custom Function alive; here
            ``node`` does so itself.
    """

    node: Node
    output_nr: int
    ownership_token: Node | None = None


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The place in the graph where the gradient of ``tensor`` flows.

    Raises:
        RuntimeError: ``tensor`` does not require grad.
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require "
            "gradients"
        )
    return GradientEdge(*gradient_edge(tensor))
