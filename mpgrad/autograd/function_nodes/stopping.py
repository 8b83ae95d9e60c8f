"""Nodes that stop a gradient: they raise an error, or return no gradient.

In PyTorch they are called ``DelayedError`` and ``UndefinedGrad``. Called with tensors, each returns
tensors with the same values and one Node as history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.arrays.cuda.device_arrays import is_array
from mpgrad.recording.graph.node import NATIVE, Edge, InputMetadata, Node
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge, metadata_of


class Error(Node):
    """Raises an error when a backward reaches it."""

    __slots__ = ("message",)

    prefix = NATIVE
    runs_on_client = True

    def __init__(
        self, message: str, edges: Sequence[Edge | None], inputs: Sequence[InputMetadata]
    ) -> None:
        super().__init__(edges, inputs)
        self.message = message

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        raise RuntimeError(self.message)

    def apply_recorded(self, grads: Sequence[Any], needs: Sequence[bool]) -> list[Any]:
        raise RuntimeError(self.message)


class UndefinedGradBackward(Node):
    """Returns no gradients."""

    __slots__ = ()

    prefix = NATIVE
    runs_on_client = True
    takes_undefined = True

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        return [None] * len(needs)

    def apply_recorded(self, grads: Sequence[Any], needs: Sequence[bool]) -> list[Any]:
        return [None] * len(needs)


class DelayedError:
    """``DelayedError(message, 2)(x, y)``: x and y, which cannot be differentiated.

    Args:
        message: of the RuntimeError that a backward through the results raises.
        num_inputs: the number of tensors.
    """

    def __init__(self, message: str | bytes, num_inputs: int) -> None:
        self._message = message.decode() if isinstance(message, bytes) else message

    def __call__(self, *tensors: Tensor | None) -> Any:
        """The tensors behind one Node; a single one is no tuple, and None stays None."""
        found = refused(self._message, tensors, tensors)
        return found[0] if len(found) == 1 else found


class UndefinedGrad:
    """``UndefinedGrad()(x)``: x, to which backward brings an undefined gradient."""

    def __call__(self, *tensors: Tensor | None) -> Any:
        """The tensors behind one Node; a single one is no tuple, and None stays None."""
        outputs, places = _taken(tensors)
        node = UndefinedGradBackward(_edges(tensors), [metadata_of(place) for place in places])
        _put_behind(node, places)
        return outputs[0] if len(outputs) == 1 else outputs


def refused(
    message: str, values: Sequence[Any], sources: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    """``values``, with tensors and arrays as tensors whose history is one :class:`Error`.

    Args:
        message: the text of the error.
        values: tensors, arrays, or other objects, which are returned unchanged.
        sources: the inputs of the Error: differentiating with respect to them raises it.
    """
    outputs, places = _taken(values)
    _put_behind(Error(message, _edges(sources), [metadata_of(place) for place in places]), places)
    return outputs


def _edges(sources: Sequence[Tensor | None]) -> list[Edge | None]:
    return [gradient_edge(t) if t is not None and t.requires_grad else None for t in sources]


def _taken(values: Sequence[Any]) -> tuple[tuple[Any, ...], list[Tensor]]:
    """``values`` with new tensors for those that can have a gradient; and these tensors."""
    outputs, places = [], []
    for value in values:
        array = value._array if isinstance(value, Tensor) else value
        if is_array(array) and array.dtype.kind in "fc":
            counter = value._version_counter if isinstance(value, Tensor) else None
            value = Tensor(array, version_counter=counter)
            places.append(value)
        outputs.append(value)
    return tuple(outputs), places


def _put_behind(node: Node, places: Sequence[Tensor]) -> None:
    if any(node.next_edges):
        for number, tensor in enumerate(places):
            tensor._grad_fn, tensor._output_nr, tensor._requires_grad = node, number, True
