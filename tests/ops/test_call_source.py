"""What is written out for an operator records what the plain way records."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.recording.dispatch import call_source
from mpgrad.recording.dispatch import operator_call as dispatch
from mpgrad.recording.dispatch.operator_mode import OperatorMode
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import Node
from mpgrad.recording.graph.registry import OPERATORS
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from tests.ops.cases import CASES, Case
from tests.ops.test_operators import run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_written_out_call_records_what_the_plain_one_does(case: Case) -> None:
    arrays = case.arrays()
    mg.manual_seed(0)
    written_out, _ = run(case, arrays)
    mg.manual_seed(0)
    with OperatorMode():  # under a mode, nothing is written out
        plain, _ = run(case, arrays)
    mg.manual_seed(0)
    with mg.profiler.profile():  # it only observes
        observed, _ = run(case, arrays)
    assert written_out._array.tobytes() == plain._array.tobytes() == observed._array.tobytes()
    assert graph_of(written_out) == graph_of(plain) == graph_of(observed)


def graph_of(tensor: mg.Tensor) -> list[Any]:
    """All that its Nodes hold, in the order in which they are found."""
    pending: list[Node] = [tensor.grad_fn] if tensor.grad_fn else []
    numbers = dict.fromkeys(pending, 0)
    found = []
    while pending:
        node = pending.pop()
        edges = []
        for edge in node.next_edges:
            if edge is not None and edge[0] not in numbers:
                numbers[edge[0]] = len(numbers)
                pending.append(edge[0])
            edges.append(None if edge is None else (numbers[edge[0]], edge[1]))
        held: list[Any] = []
        if isinstance(node, OperatorNode):
            saved = {name: shown(value) for name, value in node.saved.items()}
            held = [node.input_info, node.plain, list(saved.items()), node.has_packed]
        found.append((type(node), node.input_metadata, edges, held, node.hooks, node._metadata))
    return found


def shown(saved: Any) -> Any:
    if isinstance(saved, tuple):
        return tuple(shown(item) for item in saved)
    if not isinstance(saved, SavedTensor):
        return saved
    array = saved.array(None)
    return saved.holds_input, saved.requires_grad, array.dtype, array.shape, array.tobytes()


def test_numbers_that_are_equal_are_saved_as_they_are() -> None:
    x = mg.tensor([1.0], requires_grad=True)
    for value in (0.0, -0.0, 1, 1.0, True):
        (saved,) = [v for k, v in (x * value).grad_fn.plain.items() if k == "b"]
        assert repr(saved) == repr(value)


def test_a_result_without_gradient_has_no_node() -> None:
    x = mg.tensor([1.5], requires_grad=True)
    assert (x > 0).grad_fn is None
    assert x.to(mg.int64).grad_fn is None


def test_a_traceback_shows_the_line_that_was_written() -> None:
    def broken(xp: Any, a: Any) -> Any:
        raise KeyError("this one")

    operator = dispatch.Operator("broken", broken, {}, None, 1)
    with pytest.raises(KeyError) as caught:
        dispatch.call(operator, mg.tensor([1.0]))
    assert "raw = forward(cpu, a_array)" in "".join(traceback.format_tb(caught.tb))


def test_no_parameter_hides_what_the_source_needs() -> None:
    for operator in OPERATORS.values():
        if call_source.is_written_out(operator):
            hidden = {*operator.inputs, *operator.attributes} & set(dispatch._KNOWN)
            names = {*operator.inputs, *operator.attributes}
            assert not hidden | names & {
                "result", "raw", "needs", "record", "recorders", "node", "infos", "saved", "packed",
                "version", "operator", "forward", "described",
            }  # fmt: skip


def test_what_is_written_out_has_all_that_the_classes_give() -> None:
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    expected = mg.Tensor(y._array, requires_grad=True, grad_fn=y._grad_fn)
    expected._version_counter = y._version_counter
    assert state_of(y) == state_of(expected)
    assert state_of(y.detach() * 2.0)["_grad_fn"] is None
    product = (y * x).grad_fn
    for saved, made in [
        (product.saved["a"], SavedTensor(y)),
        (product.saved["b"], SavedTensor(x)),
        (y.grad_fn.saved["result"], SavedTensor(y, is_output=True)),
    ]:
        assert state_of(saved) == state_of(made)


def state_of(made: Any) -> dict[str, Any]:
    """What its slots hold, by identity where that can be compared."""
    return {
        name: id(value) if isinstance(value, np.ndarray | mg.Tensor) else value
        for name in type(made).__slots__
        if not name.startswith("__") and (value := getattr(made, name, "unset")) is not Ellipsis
    }


def test_gradients_where_another_dtype_or_shape_comes() -> None:
    random = np.random.default_rng(0)
    for shape, dtype in [((3,), "f4"), ((3,), "f8"), ((2, 3), "f4"), ((3,), "f4")]:
        x = mg.tensor(random.standard_normal(shape).astype(dtype), requires_grad=True)
        y = mg.tensor(random.standard_normal(3).astype(dtype), requires_grad=True)
        (x * y).sum().backward()
        assert (x.grad.shape, x.grad.dtype, y.grad.shape) == (shape, np.dtype(dtype), (3,))
