"""Every operator of the table: values, gradients and second derivatives.

PyTorch is the oracle; tests/semantics/test_gradcheck_operators.py compares the derivatives of all
cases with finite differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.nn import functional
from mpgrad.ops.elementwise import minimum_maximum
from mpgrad.ops.new_tensors import creation
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.registry import OPERATORS, Operator
from mpgrad.recording.tensors.tensor import Tensor
from tests.ops.cases import CASES, Case
from tests.ops.layer_cases import ONCE_IN_PYTORCH
from tests.ops.serial_backward import differentiable_gradients, gradients
from tests.torch_outcomes import Of

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


class _Names:
    """All public functions of some modules in one namespace."""

    def __init__(self, *modules: Any) -> None:
        self._modules = modules

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)


MPGRAD = _Names(functional, mg)


def run(case: Case, arrays: list[np.ndarray]) -> tuple[Tensor, list[Tensor]]:
    inputs = [creation.from_numpy(a).requires_grad_() for a in arrays]
    return case.function(MPGRAD, *inputs), inputs


def cotangent_for(out: Any) -> np.ndarray:
    """Any values of the shape and the kind of ``out``, which may be PyTorch's."""
    rng, shape = np.random.default_rng(3), tuple(out.shape)
    values = rng.uniform(0.5, 1.5, shape)
    is_complex = "complex" in str(out.dtype)
    return np.asarray(values + 1j * rng.uniform(-1, 1, shape) if is_complex else values)


@by_name
def test_values_and_gradients_equal_pytorchs(case: Case, of_torch: Of) -> None:
    def on_torch(torch: Any) -> Any:
        expected, leaves = _run_torch(torch, case)
        cotangent = torch.from_numpy(cotangent_for(expected))
        wanted = torch.autograd.grad(expected, leaves, cotangent, allow_unused=True)
        return expected.numpy(force=True), [_array_of(grad) for grad in wanted]

    out, inputs = run(case, case.arrays())
    grads = gradients([out], [cotangent_for(out)], inputs)
    for oracle, (expected, wanted) in of_torch(on_torch):
        np.testing.assert_allclose(out._array, expected, rtol=1e-12, atol=1e-12, err_msg=oracle)
        for ours, theirs in zip(grads, wanted, strict=True):
            assert (ours is None) == (theirs is None), oracle
            if ours is not None:
                np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12, err_msg=oracle)


@by_name
def test_formulas_run_on_tensors_too(case: Case) -> None:
    out, inputs = run(case, case.arrays())
    cotangent = cotangent_for(out)
    on_arrays = gradients([out], [cotangent], inputs)
    on_tensors = differentiable_gradients([out], [Tensor(cotangent)], inputs)
    for array, tensor in zip(on_arrays, on_tensors, strict=True):
        assert (array is None) == (tensor is None)
        if array is not None:
            np.testing.assert_allclose(tensor._array, array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name not in ONCE_IN_PYTORCH],
    ids=lambda case: case.name,
)
def test_second_derivatives_equal_pytorchs(case: Case, of_torch: Of) -> None:
    def on_torch(torch: Any) -> Any:
        expected, leaves = _run_torch(torch, case)
        sources = [*leaves, torch.from_numpy(cotangent_for(expected)).requires_grad_()]
        firsts = torch.autograd.grad(
            expected, leaves, sources[-1], create_graph=True, allow_unused=True
        )
        is_used = [first is not None and first.requires_grad for first in firsts]
        used = [first for first, is_one in zip(firsts, is_used, strict=True) if is_one]
        weights = [torch.from_numpy(cotangent_for(first)) for first in used]
        wanted = torch.autograd.grad(used, sources, weights, allow_unused=True)
        return is_used, [_array_of(grad) for grad in wanted]

    out, inputs = run(case, case.arrays())
    cotangent = Tensor(cotangent_for(out)).requires_grad_()
    firsts = differentiable_gradients([out], [cotangent], inputs)
    for oracle, (is_used, wanted) in of_torch(on_torch):
        used = [first for first, is_one in zip(firsts, is_used, strict=True) if is_one]
        weights = [cotangent_for(first) for first in used]
        for second, target in zip(
            gradients(used, weights, [*inputs, cotangent]), wanted, strict=True
        ):
            left, right = (0.0 if grad is None else grad for grad in (second, target))
            np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-10, err_msg=oracle)


@by_name
def test_create_graph_gives_the_same_derivatives(case: Case) -> None:
    out, inputs = run(case, case.arrays())
    cotangent = Tensor(cotangent_for(out)).requires_grad_()
    sources = [*inputs, cotangent]
    with mg.Engine("local"):
        firsts = mg.grad(out, inputs, cotangent, create_graph=True, allow_unused=True)
        used = [at for at, first in enumerate(firsts) if first is not None and first.requires_grad]
        weights = {at: cotangent_for(firsts[at]) for at in used}
        seconds = mg.grad(
            [firsts[at] for at in used],
            sources,
            [Tensor(weight) for weight in weights.values()],
            retain_graph=True,
            allow_unused=True,
        )
    expected = differentiable_gradients([out], [cotangent], inputs)
    wanted = gradients([expected[at] for at in used], list(weights.values()), sources)
    for first, value in zip(firsts, expected, strict=True):
        assert (first is None) == (value is None)
        if first is not None:
            assert first.numpy(force=True).tobytes() == value.numpy(force=True).tobytes()
    for second, target in zip(seconds, wanted, strict=True):
        left = 0.0 if second is None else second.numpy()
        np.testing.assert_allclose(left, 0.0 if target is None else target, rtol=1e-12, atol=1e-12)


def _array_of(grad: Any) -> np.ndarray | None:
    return None if grad is None else grad.numpy(force=True)


def _run_torch(torch: Any, case: Case) -> tuple[Any, list[Any]]:
    leaves = [torch.from_numpy(a).requires_grad_() for a in case.arrays()]
    names = _Names(torch.nn.functional, torch)
    return case.function(names, *leaves), leaves


@by_name
def test_memory_layout_does_not_matter(case: Case) -> None:
    arrays = case.arrays()
    out, inputs = run(case, arrays)
    strided = [_with_gaps(array) for array in arrays]
    if case.name == "view":
        pytest.skip("view promises never to copy")
    again, same_inputs = run(case, strided)
    np.testing.assert_allclose(again._array, out._array, rtol=1e-13, atol=1e-13)
    cotangent = cotangent_for(out)
    pairs = zip(
        gradients([out], [cotangent], inputs),
        gradients([again], [_with_gaps(cotangent)], same_inputs),
        strict=True,
    )
    for one, other in pairs:
        if one is not None:
            np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)


def _with_gaps(array: np.ndarray) -> np.ndarray:
    """Equal elements in Fortran order with gaps between them."""
    wide = np.zeros((*array.shape, 2)[::-1], array.dtype)
    view = wide.T[..., 1]
    view[...] = array
    return view


@by_name
def test_float32_stays_float32(case: Case) -> None:
    singles = [a.astype(np.complex64 if a.dtype.kind == "c" else np.float32) for a in case.arrays()]
    out, inputs = run(case, singles)
    # Cases that mix in float64 constants widen, as PyTorch does.
    cotangent = cotangent_for(out).astype(out.dtype)
    for grad, single in zip(gradients([out], [cotangent], inputs), singles, strict=True):
        assert grad is None or grad.dtype == single.dtype


def test_the_table_covers_every_operator_with_a_formula() -> None:
    seen: set[str] = set()
    for case in CASES:
        out, inputs = run(case, case.arrays())
        seen |= _operators_behind(out)
        cotangent = creation.ones_like(out, requires_grad=True)
        for first in differentiable_gradients([out], [cotangent], inputs):
            seen |= _operators_behind(first) if first is not None else set()
    differentiable = {n for n, op in OPERATORS.items() if op.derivatives or op.joint}
    # Their formulas only say that there is none, or that it is 0; tests/cuda moves to devices.
    drawn = {"exponential", "random", "cauchy", "geometric", "log_normal"}
    without = {"floor_divide", "linalg_qr_r", "unique", *drawn}
    moves = {"to_device", "scatter_to_devices", "gather_to_device"}
    # mpgrad.distributions and nn have them, and their tests.
    elsewhere = {"standard_gamma", "standard_dirichlet", "rnn_tanh", "rnn_relu", "lstm", "gru"}
    assert differentiable - seen - elsewhere == without | moves


def _operators_behind(tensor: Tensor) -> set[str]:
    names, pending, seen = set(), [tensor.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, OperatorNode):
            names.add(node.operator.name)
        pending.extend(edge[0] for edge in node.next_edges if edge)
    return names


def test_attributes_can_travel_in_a_message() -> None:
    for case in CASES:
        out, _ = run(case, case.arrays())
        pending = [out.grad_fn]
        while pending:
            node = pending.pop()
            if isinstance(node, OperatorNode):
                assert all(_is_plain(value) for value in node.plain.values()), (case.name, node)
                pending.extend(edge[0] for edge in node.next_edges if edge)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, slice):
        return all(_is_plain(x) for x in (value.start, value.stop, value.step))
    return (
        value is None
        or value is Ellipsis
        or isinstance(value, bool | int | float | complex | str | np.dtype)
    )


def test_large_results_are_the_same_as_small_ones() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300, 200))
    x, y = creation.tensor(a, requires_grad=True), creation.tensor(b, requires_grad=True)
    out = minimum_maximum.where(x > 0, x * y, x / (y * y + 1)) - (x @ y.T).sum(1, keepdim=True)
    expected = np.where(a > 0, a * b, a / (b * b + 1)) - (a @ b.T).sum(1, keepdims=True)
    np.testing.assert_allclose(out._array, expected, rtol=1e-12)
    assert out._array.flags.c_contiguous


def test_only_views_share_memory_with_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that is not declared a view must not give one: nobody would count its changes."""
    aliases = []

    def checked(operator: Operator) -> Any:
        forward = operator.forward

        def run(xp: Any, *inputs: Any, **attributes: Any) -> Any:
            raw = forward(xp, *inputs, **attributes)
            results = raw if isinstance(raw, tuple) else (raw,)
            arrays = [value for value in inputs if isinstance(value, np.ndarray)]
            if any(np.shares_memory(a, r) for a in arrays for r in results if r is not None):
                aliases.append(operator.name)
            return raw

        return run

    for operator in OPERATORS.values():
        if operator.view is None:
            monkeypatch.setattr(operator, "forward", checked(operator))
    for case in CASES:
        run(case, case.arrays())
    # The last four exist for their in-place forms, which copy the result at once.
    assert set(aliases) <= {"bernoulli", "copy", "fill", "normal", "uniform"}
