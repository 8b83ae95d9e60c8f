"""Derivatives of torch.func inside of items, and inputs that change after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [
    pytest.mark.process,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # of torch's own
]

FUNC = torch.func


@pytest.fixture(scope="module", params=["local", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    with mg.Engine(request.param, cpu_workers=1) as engine:
        yield engine


def cubes(x: Any) -> Any:
    return (x**3).sum()


def hessian(x: Any, c: Any) -> Any:
    return FUNC.hessian(cubes)(x).sum() + c.sum()


def forward_twice(x: Any, c: Any) -> Any:
    return FUNC.jacfwd(FUNC.jacfwd(cubes))(x).sum() + c.sum()


def reverse_twice(x: Any, c: Any) -> Any:
    return FUNC.jacrev(FUNC.jacrev(cubes))(x).sum() + c.sum()


def batched_hessian(x: Any, c: Any) -> Any:
    return FUNC.vmap(FUNC.hessian(cubes))(x[None]).sum() + c.sum()


def sparse(x: Any, c: Any) -> Any:
    return torch.sparse.mm(torch.eye(2).to_sparse(), (x * x)[:, None]).sum() + c.sum()


@pytest.mark.parametrize("fn", [hessian, forward_twice, reverse_twice, batched_hessian, sparse])
def test_create_graph_and_changed_arguments(engine: mg.Engine, fn: Any) -> None:
    x, c = torch.tensor([1.0, 2.0], requires_grad=True), torch.ones(2)

    def derivatives(result: Any) -> list[Any]:
        (first,) = torch.autograd.grad(result, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
        return [first.tolist(), None if second is None else second.tolist()]

    assert derivatives(mt.parallel_map(fn, [x], shared=(c,))[0]) == derivatives(fn(x, c))
    (result,) = mt.parallel_map(fn, [x], shared=(c,))
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    (result,) = mt.parallel_map(fn, [x], shared=(c,))
    c.add_(1)
    if fn is sparse:  # it is not known what a sparse tensor has saved
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()
    else:
        result.backward()
        assert torch.equal(x.grad, torch.autograd.grad(fn(x, c), x)[0])
