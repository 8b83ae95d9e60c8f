"""no_grad, enable_grad, set_grad_enabled: what is recorded, and what comes back afterwards."""

from __future__ import annotations

import threading

import pytest

import mpgrad as mg


@pytest.fixture
def x() -> mg.Tensor:
    return mg.tensor([1.0, 2.0], requires_grad=True)


def test_modes_nest_and_come_back(x: mg.Tensor) -> None:
    with mg.no_grad():
        assert not (x * 2).requires_grad
        with mg.enable_grad():
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_the_mode_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="on purpose"), mg.no_grad():
        raise ValueError("on purpose")
    assert mg.is_grad_enabled()


def test_as_decorators(x: mg.Tensor) -> None:
    @mg.no_grad()
    def with_call() -> mg.Tensor:
        return x * 2

    @mg.no_grad
    def without_call() -> mg.Tensor:
        return x * 2

    @mg.set_grad_enabled(False)
    def with_value() -> mg.Tensor:
        return x * 2

    assert mg.is_grad_enabled()
    for function in (with_call, without_call, with_value):
        assert not function().requires_grad
        assert mg.is_grad_enabled()


def test_set_grad_enabled_acts_at_once(x: mg.Tensor) -> None:
    try:
        mg.set_grad_enabled(False)
        assert not (x * 2).requires_grad
    finally:
        mg.set_grad_enabled(True)
    with mg.set_grad_enabled(False):
        assert not mg.is_grad_enabled()
    assert mg.is_grad_enabled()


def test_each_thread_has_its_own_mode(x: mg.Tensor) -> None:
    seen: list[bool] = []
    with mg.no_grad():
        thread = threading.Thread(target=lambda: seen.append((x * 2).requires_grad))
        thread.start()
        thread.join()
    assert seen == [True]


def test_the_graph_can_be_walked(x: mg.Tensor) -> None:
    y = (x * 3.0).sum()
    assert y.grad_fn is not None
    assert y.grad_fn.name() == "SumBackward0"
    ((product, number),) = y.grad_fn.next_functions
    assert product is not None
    assert (product.name(), number) == ("MulBackward0", 0)
    leaf, scalar = product.next_functions
    assert leaf[0] is not None
    assert leaf[0].name() == "torch::autograd::AccumulateGrad"
    assert scalar == (None, 0)
    assert not x.retains_grad
    y.retain_grad()
    assert y.retains_grad
    y.grad_fn.metadata["note"] = 1
    assert y.grad_fn.metadata == {"note": 1}
