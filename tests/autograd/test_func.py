"""``mg.func``: derivatives of functions, as functions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.torch_outcomes import Of, Seen

pytestmark = pytest.mark.torch


def numbers(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if hasattr(value, "detach"):
        return [value.requires_grad, *value.detach().double().reshape(-1).tolist()]
    return value


def loss(lib: Any) -> Any:
    return lambda x, y: (x.sin() * y * y).sum()


def parameters(lib: Any) -> Any:
    return {"w": lib.full((2,), 2.0), "b": [lib.tensor(1.0), lib.tensor(3.0)]}


PROGRAMS = {
    "one argument": lambda lib: lib.func.grad(loss(lib))(lib.ones(2), lib.full((2,), 3.0)),
    "another": lambda lib: lib.func.grad(loss(lib), argnums=1)(lib.ones(2), lib.full((2,), 3.0)),
    "both": lambda lib: lib.func.grad(loss(lib), argnums=(0, 1))(lib.ones(2), lib.ones(2)),
    "and value": lambda lib: lib.func.grad_and_value(loss(lib))(lib.ones(2), lib.ones(2)),
    "with something else": lambda lib: lib.func.grad(
        lambda x: ((x * x).sum(), x.detach() * 5), has_aux=True
    )(lib.ones(2)),
    "of a gradient": lambda lib: lib.func.grad(lib.func.grad(lambda x: x**3))(lib.tensor(2.0)),
    "of a gradient of a gradient": lambda lib: lib.func.grad(
        lib.func.grad(lib.func.grad(lambda x: x.exp() * x))
    )(lib.tensor(0.5)),
    "of a tree": lambda lib: lib.func.grad(lambda p: (p["w"] * p["b"][0]).sum() * p["b"][1] ** 2)(
        parameters(lib)
    ),
    "unused": lambda lib: lib.func.grad(lambda x, y: (y * y).sum())(lib.ones(2), lib.ones(1)),
    "vjp": lambda lib: (lambda pair: (pair[0], pair[1](lib.ones(3)), pair[1](lib.full((3,), 2.0))))(
        lib.func.vjp(lambda x: x * x, lib.arange(3.0))
    ),
    "jacobian": lambda lib: lib.func.jacrev(lambda x: x**2)(lib.arange(3.0)),
    "hessian": lambda lib: lib.func.hessian(lambda x: (x**3).sum())(lib.arange(3.0)),
    "no number": lambda lib: lib.func.grad(lambda x: x * 2)(lib.ones(2)),
}


def outcome(lib: Any, name: str) -> Any:
    with warnings.catch_warnings():
        # What PyTorch loads for its own says that it is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return numbers(PROGRAMS[name](lib))
        except RuntimeError as error:
            return Seen("error", type(error).__name__)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_pytorch_gives(name: str, of_torch: Of) -> None:
    here = outcome(mg, name)
    for oracle, there in of_torch(lambda torch: outcome(torch, name)):
        if isinstance(there, Seen):
            assert here == there, oracle
        else:
            assert str(here) == str(there) or flat(here) == pytest.approx(flat(there)), oracle


def flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in flat(item)]
    return [float(value)]


def test_value_and_grad_takes_numpys_arrays() -> None:
    value, gradient = mg.func.value_and_grad(lambda x: (x * x).sum())(np.array([1.0, 3.0]))
    assert value.item() == 10
    assert gradient.tolist() == [2, 6]
    assert not gradient.requires_grad


def test_words_for_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="with respect to Tensors, not to int"):
        mg.func.grad(lambda x: x)(3)


def test_a_number_is_taken_for_a_tensor() -> None:
    """As autograd and JAX do."""
    value, gradient = mg.func.value_and_grad(lambda x: x**3)(2.0)
    assert (value.item(), gradient.item()) == (8.0, 12.0)
    assert mg.func.grad(mg.func.grad(lambda x: x**3))(2.0).item() == 12.0
    with pytest.raises(TypeError, match="not to int"):
        mg.func.grad(lambda x: x**3)(2)
