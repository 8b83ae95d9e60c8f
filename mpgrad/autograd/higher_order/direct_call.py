"""call_directly(): ``node(*grads)`` runs the rule of one Node here, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.autograd.higher_order.recording import mirrored_call
from mpgrad.autograd.running.hook_nodes import add_to_grad
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.tensor import Tensor


def call_directly(node: Node, grads: Sequence[Any]) -> Any:
    """See ``Node.__call__``."""
    expected = len(node.input_metadata)
    if len(grads) != expected:
        raise TypeError(f"expected {expected} arguments, got {len(grads)} instead")
    for index, grad in enumerate(grads):
        if grad is not None and not isinstance(grad, Tensor):
            raise TypeError(f"argument {index} is not a Variable, but {type(grad).__name__}")
    results = _results(node, list(grads))
    return results[0] if len(results) == 1 else tuple(results)


def _results(node: Node, grads: list[Tensor | None]) -> list[Tensor | None]:
    if isinstance(node, AccumulateGrad):
        _accumulate(node, grads[0])
        return []
    needs = [edge is not None for edge in node.next_edges]
    if isinstance(node, FunctionNode):
        if is_grad_enabled():
            given = node.apply_recorded(grads, needs)
        else:
            given = _on_arrays(node, grads, needs)
        return [given[position] for position in node.outputs_shown()]
    if isinstance(node, OperatorNode):
        if all(grad is None for grad in grads):
            return [None] * len(needs)
        derived, inputs, attributes = mirrored_call(node, grads, needs, node.input_info)
        results = iter(call(derived, *inputs, **attributes))
        return [next(results) if needed else None for needed in needs]
    raise TypeError(f"{node.name()} cannot be called")


def _accumulate(accumulator: AccumulateGrad, grad: Tensor | None) -> None:
    if grad is None:
        return
    expected = accumulator.input_metadata[0].shape
    if grad.shape != expected:
        raise RuntimeError(
            f"The size of the gradient {grad.shape} must match the size of the leaf {expected}"
        )
    accumulator.check()
    add_to_grad(accumulator, grad)


def _on_arrays(
    node: FunctionNode, grads: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    arrays = [None if grad is None else grad._array for grad in grads]
    return [None if value is None else Tensor(value) for value in node.apply(None, arrays, needs)]
