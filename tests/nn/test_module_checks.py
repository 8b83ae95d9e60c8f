"""What a Module may hold, and what becomes of a name that is taken anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn


@pytest.mark.parametrize("kind", ["parameter", "module"])
def test_a_checkpoint_has_what_took_the_place_of_a_buffer(kind: str) -> None:
    m = nn.Module()
    m.register_buffer("b", mg.rand(3), persistent=False)
    m.b = nn.Parameter(mg.rand(3)) if kind == "parameter" else nn.Linear(1, 1)
    assert [name.partition(".")[0] for name in m.state_dict()][:1] == ["b"]
    del m.b
    m.register_buffer("b", mg.rand(3))
    assert list(m.state_dict()) == ["b"]


def test_a_buffer_that_is_assigned_again_stays_what_it_was() -> None:
    m = nn.Module()
    m.register_buffer("b", mg.rand(3), persistent=False)
    m.b = mg.rand(3)
    assert list(m.state_dict()) == []


Refused = Callable[[nn.Module], Any]

REFUSED: dict[str, tuple[Refused, type[Exception], str]] = {
    "no module": (lambda m: m.add_module("a", 3), TypeError, "int is not a Module subclass"),
    "a number as name": (lambda m: m.add_module(3, nn.ReLU()), TypeError, "should be a string"),
    "a buffer's name": (lambda m: m.register_buffer(3, None), TypeError, "should be a string"),
    "no buffer": (lambda m: m.register_buffer("b", 3), TypeError, "to buffer 'b'"),
    "no parameter": (lambda m: m.register_parameter("p", 3), TypeError, "to parameter 'p'"),
    "a plain tensor": (lambda m: m.register_parameter("p", mg.ones(2)), TypeError, "parameter 'p'"),
    "a text as mode": (lambda m: m.train("x"), ValueError, "training mode is expected to be"),
    "a number as mode": (lambda m: m.train(1), ValueError, "training mode is expected to be"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_module_refuses(name: str) -> None:
    call, error, words = REFUSED[name]
    module = nn.Module()
    with pytest.raises(error, match=words):
        call(module)
    assert not list(module.named_modules())[1:]
    assert not module.state_dict()


def test_statistics_that_are_switched_off_later() -> None:
    x = mg.arange(8.0).reshape(4, 2)
    norm = nn.BatchNorm1d(2)
    norm.track_running_stats = False
    expected = (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt()
    np.testing.assert_allclose(norm(x).detach(), expected, rtol=1e-6)
    assert norm.num_batches_tracked.item() == 0
    assert norm.running_mean.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(norm.eval()(x).detach(), x / (1 + norm.eps) ** 0.5, rtol=1e-6)
    norm.train().track_running_stats = True
    norm(x)
    assert norm.num_batches_tracked.item() == 1
