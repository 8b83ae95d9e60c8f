"""A linear map with several uses: its gradients, their derivatives, and the Node of its weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.ops.repeated_linear import repeated_linear

ROWS = (2, 3, 1)


def _values(dtype: Any) -> list[Any]:
    generator = np.random.default_rng(0)

    def made(*shape: int) -> Any:
        real = generator.standard_normal(shape)
        return (
            (real + 1j * generator.standard_normal(shape)).astype(dtype)
            if dtype is complex
            else real
        )

    return [made(4, 4), made(4), *[made(rows, 4) for rows in ROWS]]


def _outputs(weight: Any, bias: Any, inputs: Any, *, repeated: bool) -> Any:
    """Each use reads the result of the one before, so that its input needs a gradient."""
    use = repeated_linear(weight, bias, ROWS) if repeated else None
    before, found = None, []
    for rows in inputs:
        x = rows if before is None else rows + before.sum(0)
        before = use(x) if use is not None else mg.nn.functional.linear(x, weight, bias)
        before = before * before
        found.append(before)
    return mg.cat(found)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("frozen", [(), (0,), (1,), (2, 3, 4)])
def test_gradients_of_all_orders_are_those_of_linear(dtype: Any, frozen: tuple[int, ...]) -> None:
    def gradients(repeated: bool) -> list[Any]:
        leaves = [
            mg.tensor(value, requires_grad=at not in frozen)
            for at, value in enumerate(_values(dtype))
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        weight, bias, *inputs = leaves
        total = _outputs(weight, bias, inputs, repeated=repeated).abs().sum()
        first = mg.autograd.grad(total, wanted, create_graph=True)
        second = mg.autograd.grad(sum((g * g).abs().sum() for g in first), wanted)
        return [*first, *second]

    for ours, plain in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), plain.detach().numpy(), 1e-10, 1e-10)


def test_workers_give_the_bits_of_local() -> None:
    def gradients(mode: str) -> list[bytes]:
        leaves = [mg.tensor(value, requires_grad=True) for value in _values(float)]
        with mg.Engine(mode, cpu_workers=2):
            _outputs(leaves[0], leaves[1], leaves[2:], repeated=True).sum().backward()
        return [leaf.grad.numpy().tobytes() for leaf in leaves]

    assert gradients("process") == gradients("local")


def test_a_weight_gets_one_gradient_however_many_uses_it_has() -> None:
    layer = mg.nn.LSTM(3, 4, proj_size=2, bidirectional=True)
    seen: list[Any] = []
    nodes = [layer(mg.randn(5, 2, 3))[0].grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and not any(node is other for other in seen):
            seen.append(node)
            nodes += [other for other, _ in node.next_functions]
    for parameter in layer.parameters():
        to_leaf = [
            node
            for node in seen
            for other, _ in node.next_functions
            if getattr(other, "variable", None) is parameter
        ]
        assert len(to_leaf) == 1


def test_nothing_is_recorded_where_no_gradient_is_wanted() -> None:
    weight = mg.ones(4, 4, requires_grad=True)
    with mg.no_grad():
        assert repeated_linear(weight, None, (2,))(mg.ones(2, 4)).grad_fn is None
    assert repeated_linear(mg.ones(4, 4), None, (2,))(mg.ones(2, 4)).grad_fn is None
