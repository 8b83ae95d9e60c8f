"""torch.Generator as an argument: the call has a copy, and the caller's own goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(scope="module", params=["local", "process"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    with mg.Engine(request.param, cpu_workers=2) as engine:
        yield engine


def generators() -> list[Any]:
    return [torch.Generator().manual_seed(seed) for seed in range(2)]


def draw(generator: Any) -> Any:
    return torch.randn(3, generator=generator)


def test_each_item_draws_from_its_own(engine: mg.Engine) -> None:
    ours, plain = generators(), generators()
    for _ in range(2):
        for found, wanted in zip(mt.parallel_map(draw, ours), map(draw, plain), strict=True):
            assert torch.equal(found, wanted)
    assert torch.equal(mt.wait(mt.fork(draw, ours[0])), draw(plain[0]))
    assert [one.get_state().tolist() for one in ours] == [one.get_state().tolist() for one in plain]


def test_one_that_is_returned_too(engine: mg.Engine) -> None:
    ours, plain = generators(), generators()
    for found, returned in mt.parallel_map(lambda one: (draw(one), one), ours):
        one = plain.pop(0)
        assert torch.equal(found, draw(one))
        assert torch.equal(returned.get_state(), one.get_state())


def test_two_items_that_draw_from_one(engine: mg.Engine) -> None:
    with pytest.raises(RuntimeError, match="both drawn from the same generator"):
        mt.parallel_map(draw, generators()[:1] * 2)


def test_one_that_is_shared(engine: mg.Engine) -> None:
    def drawn(_: int, one: Any) -> Any:
        return draw(one)

    with pytest.raises(RuntimeError, match="Give each item a generator of its own"):
        mt.parallel_map(drawn, [1, 2], shared=generators()[:1])


def test_both_derivatives_of_a_branch_that_draws(engine: mg.Engine) -> None:
    x = torch.ones(3, requires_grad=True)

    def scaled(one: Any, x: Any) -> Any:
        return (x**3 * draw(one)).sum()

    (first,) = torch.autograd.grad(
        sum(mt.parallel_map(scaled, generators(), shared=(x,))), x, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(second, 6 * sum(map(draw, generators())))
