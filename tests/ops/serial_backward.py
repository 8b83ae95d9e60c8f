"""A reference executor for operator tests: no engine, no plan, one Node after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.ops import differentiable
from mpgrad.ops.elementwise import arithmetic
from mpgrad.ops.new_tensors import creation
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge


def gradients(outputs: Sequence[Tensor], cotangents: Sequence[Any], inputs: Sequence[Tensor]):
    """Arrays: the gradients of ``inputs`` (None where there is none), on NumPy."""
    return _run(outputs, cotangents, inputs, apply=_apply_arrays, add=np.add)


def differentiable_gradients(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor]
):
    """Tensors: the same through the differentiable namespace, recorded."""
    return _run(outputs, cotangents, inputs, apply=_apply_tensors, add=arithmetic.add)


def _run(outputs: Any, cotangents: Any, inputs: Any, *, apply: Any, add: Any) -> list[Any]:
    buffers: dict[Node, list[Any]] = {}

    def deliver(edge: Any, grad: Any) -> None:
        node, input_nr = edge
        slots = buffers.setdefault(node, [None] * len(node.input_metadata))
        present = slots[input_nr]
        slots[input_nr] = grad if present is None else add(present, grad)

    for tensor, cotangent in zip(outputs, cotangents, strict=True):
        if tensor.requires_grad:
            deliver(gradient_edge(tensor), cotangent)
    for node in _in_order(list(buffers)):
        if isinstance(node, AccumulateGrad) or node not in buffers:
            continue
        needs = [edge is not None for edge in node.next_edges]
        results = apply(node, buffers[node], needs)
        for edge, grad, info in zip(node.next_edges, results, node.input_info, strict=True):
            if edge is not None:
                assert (tuple(grad.shape), grad.dtype) == (info.shape, info.dtype), node
                deliver(edge, grad)
    edges = [gradient_edge(tensor) for tensor in inputs]
    return [buffers[node][nr] if node in buffers else None for node, nr in edges]


def _in_order(roots: list[Node]) -> list[Node]:
    """Every Node that the roots reach, higher sequence numbers first."""
    seen, pending = set(roots), list(roots)
    while pending:
        for edge in pending.pop().next_edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                pending.append(edge[0])
    return sorted(seen, key=lambda node: -node.sequence_nr)


def _apply_arrays(node: OperatorNode, grads: list[Any], needs: list[bool]) -> list[Any]:
    defined = [
        np.zeros(m.shape, m.dtype) if grad is None else grad
        for grad, m in zip(grads, node.input_metadata, strict=True)
    ]
    return node.apply(cpu, defined, needs)


def _apply_tensors(node: OperatorNode, grads: list[Any], needs: list[bool]) -> list[Any]:
    defined = [
        creation.zeros(m.shape, dtype=m.dtype) if grad is None else grad
        for grad, m in zip(grads, node.input_metadata, strict=True)
    ]
    saved = {name: _tensors(value, node) for name, value in node.saved.items()}
    return node.operator.backward(differentiable, defined, {**node.plain, **saved}, needs)


def _tensors(value: Any, node: OperatorNode) -> Any:
    if isinstance(value, tuple):
        return tuple(_tensors(item, node) for item in value)
    return value.tensor(node) if isinstance(value, SavedTensor) else value
