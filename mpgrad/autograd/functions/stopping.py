"""What stops a gradient: Nodes that raise, or that let nothing through.

In PyTorch they are called ``DelayedError`` and ``UndefinedGrad``. Called with tensors, each gives
tensors with the same values and one Node behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.autograd.nodes.node import Edge, InputMetadata, Node
from mpgrad.tensor import Tensor, gradient_edge, metadata_of


class Error(Node):
    """Raises as soon as somebody differentiates through it."""

    __slots__ = ("message",)

    runs_on_client = True
    message: str

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        raise RuntimeError(self.message)

    def apply_recorded(self, grads: Sequence[Any], needs: Sequence[bool]) -> list[Any]:
        raise RuntimeError(self.message)


class UndefinedGradBackward(Node):
    """Gives no gradients, whatever it gets."""

    __slots__ = ()

    runs_on_client = True
    takes_undefined = True

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        return [None] * len(needs)

    def apply_recorded(self, grads: Sequence[Any], needs: Sequence[bool]) -> list[Any]:
        return [None] * len(needs)


class DelayedError:
    """``DelayedError(message, 2)(x, y)``: x and y, which can be used, but not differentiated.

    Args:
        message: of the RuntimeError that a backward through the results raises.
        num_inputs: how many tensors there will be.
    """

    def __init__(self, message: str | bytes, num_inputs: int) -> None:
        self._message = message.decode() if isinstance(message, bytes) else message

    def __call__(self, *tensors: Tensor | None) -> Any:
        """The tensors behind one Node; one alone is no tuple, and None stays None."""
        node = Error(*_place(tensors))
        node.message = self._message
        return _behind(node, tensors)


class UndefinedGrad:
    """``UndefinedGrad()(x)``: x, to which backward brings an undefined gradient."""

    def __call__(self, *tensors: Tensor | None) -> Any:
        """The tensors behind one Node; one alone is no tuple, and None stays None."""
        return _behind(UndefinedGradBackward(*_place(tensors)), tensors)


def _place(tensors: Sequence[Tensor | None]) -> tuple[list[Edge | None], list[InputMetadata]]:
    """The edges and the input metadata of a Node between ``tensors`` and what becomes of them."""
    edges = [gradient_edge(t) if t is not None and t.requires_grad else None for t in tensors]
    return edges, [metadata_of(t) for t in tensors if t is not None]


def _behind(node: Node, tensors: Sequence[Tensor | None]) -> Any:
    outputs: list[Tensor | None] = []
    number = 0
    for tensor in tensors:
        if tensor is None:
            outputs.append(None)
            continue
        made = Tensor(tensor._array, version_counter=tensor._version_counter)
        if any(node.next_edges) and made._array.dtype.kind in "fc":
            made._grad_fn, made._output_nr, made._requires_grad = node, number, True
        outputs.append(made)
        number += 1
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
