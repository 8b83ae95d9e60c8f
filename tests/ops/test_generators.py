"""Generators of one's own, and what draws from them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import mpgrad as mg

DRAWS: dict[str, Callable[..., mg.Tensor]] = {
    "rand": lambda **g: mg.rand(4, **g),
    "randn": lambda **g: mg.randn(4, **g),
    "randint": lambda **g: mg.randint(0, 1000, (4,), **g),
    "randperm": lambda **g: mg.randperm(40, **g),
    "rand_like": lambda **g: mg.rand_like(mg.ones(4), **g),
    "randint_like": lambda **g: mg.randint_like(mg.ones(4), 1000, **g),
    "normal": lambda **g: mg.normal(mg.ones(4), 2.0, **g),
    "bernoulli": lambda **g: mg.bernoulli(mg.full((64,), 0.5), **g),
    "multinomial": lambda **g: mg.multinomial(mg.ones(100), 10, **g),
    "poisson": lambda **g: mg.poisson(mg.full((8,), 100.0), **g),
    "uniform_": lambda **g: mg.empty(4).uniform_(**g),
    "normal_": lambda **g: mg.empty(4).normal_(**g),
    "bernoulli_": lambda **g: mg.empty(64).bernoulli_(**g),
    "random_": lambda **g: mg.empty(4).random_(**g),
    "exponential_": lambda **g: mg.empty(4).exponential_(**g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_draws_takes_a_generator(name: str) -> None:
    draw = DRAWS[name]
    mg.manual_seed(1)
    state = mg.get_rng_state()
    first = draw(generator=mg.Generator().manual_seed(3))
    assert mg.equal(mg.get_rng_state(), state)  # the process's was left alone
    assert mg.equal(first, draw(generator=mg.Generator().manual_seed(3)))
    assert not mg.equal(first, draw(generator=mg.Generator().manual_seed(4)))
    mg.manual_seed(3)
    assert mg.equal(first, draw())


def test_a_generator_of_numpys_serves_too() -> None:
    generator = mg.Generator().manual_seed(3)
    drawn = mg.rand(4, generator=np.random.default_rng(np.random.PCG64(3)))
    assert mg.equal(drawn, mg.rand(4, generator=generator))


def test_seeds() -> None:
    generator = mg.manual_seed(7)
    assert generator.initial_seed() == mg.initial_seed() == 7
    assert generator.manual_seed(-1).initial_seed() == 2**64 - 1
    assert generator.seed() == generator.initial_seed() != mg.Generator().initial_seed()
    assert mg.Generator().initial_seed() == 67280421310721  # PyTorch's
    with pytest.raises(RuntimeError, match="Overflow"):
        generator.manual_seed(2**64)


def test_a_state_goes_on_where_it_was() -> None:
    generator = mg.Generator().manual_seed(1)
    mg.randn(5, generator=generator)
    others = [pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator), mg.Generator()]
    others[2].set_state(generator.get_state())
    expected = mg.randn(5, generator=generator)
    for other in others:
        assert mg.equal(mg.randn(5, generator=other), expected)


def test_what_is_no_generator_is_refused() -> None:
    with pytest.raises(TypeError, match=r"generator must be .* not builtins\.int"):
        mg.rand(2, generator=3)
    with pytest.raises(RuntimeError, match="a Generator is on the CPU"):
        mg.Generator("cuda")


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [(mg.uint8, 256), (mg.int64, 2**63), (mg.float32, 2**24 + 1), (mg.bool, 2)],
)
def test_random_without_bounds_has_the_whole_range(dtype: object, limit: int) -> None:
    mg.manual_seed(0)
    drawn = mg.empty(500, dtype=dtype).random_().tolist()
    assert min(drawn) >= 0
    assert limit * 0.9 < max(drawn) + 1 <= limit


def test_random_with_bounds() -> None:
    assert set(mg.empty(100).random_(3).tolist()) == {0, 1, 2}
    assert set(mg.empty(100).random_(-2, 0).tolist()) == {-2, -1}
    with pytest.raises(RuntimeError, match="'from' to be less than 'to', but got from=5 >= to=3"):
        mg.empty(1).random_(5, 3)


def test_draws_in_place_have_no_gradient() -> None:
    for fill in ("random_", "exponential_"):
        x = mg.ones(3, requires_grad=True)
        y = getattr(x * 2, fill)()
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0, 0, 0]


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(RuntimeError, match="exponential_ expects lambda > 0"):
        mg.empty(2).exponential_(0.0)
    with pytest.raises(NotImplementedError, match="int64"):
        mg.empty(2, dtype=mg.int64).exponential_()


def test_a_table_that_is_given_draws_nothing() -> None:
    state = mg.get_rng_state()
    layer = mg.nn.Embedding.from_pretrained(mg.ones(3, 2))
    assert mg.equal(mg.get_rng_state(), state)
    assert not layer.weight.requires_grad


def test_randint_takes_its_bounds_by_position_and_by_name() -> None:
    # A size by name made one of the bounds from memory that nothing had been written to.
    for drawn in (
        mg.randint(9, size=(500,)),
        mg.randint(high=9, size=(500,)),
        mg.randint(9, (500,)),
        mg.randint(0, high=9, size=(500,)),
        mg.randint_like(mg.ones(500), high=9),
    ):
        assert {int(number) for number in drawn.tolist()} == set(range(9))
    assert set(mg.randint(low=7, high=9, size=(99,)).tolist()) == {7, 8}
    for missing in ({"size": (2,)}, {"low": 3}, {}):
        with pytest.raises(TypeError, match="needs a size"):
            mg.randint(**missing)
