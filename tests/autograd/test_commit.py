"""Gradients become ``.grad`` all at once, whatever a signal does in between."""

from __future__ import annotations

import importlib
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg

commit = importlib.import_module("mpgrad.autograd.commit")


def in_the_middle(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call ``act`` once, while the second gradient of a commit is made ready."""
    calls: list[None] = []
    first_grad = commit.first_grad

    def acting(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            act()
        return first_grad(*args, **kwargs)

    monkeypatch.setattr(commit, "first_grad", acting)


def two_leaves() -> tuple[mg.Tensor, mg.Tensor, mg.Tensor]:
    x, y = (mg.tensor([1.0], requires_grad=True) for _ in range(2))
    return x, y, (x * 2.0 + y * 3.0).sum()


def test_ctrl_c_leaves_every_grad_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, loss = two_leaves()
    in_the_middle(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    with mg.Engine("local"), pytest.raises(KeyboardInterrupt):
        loss.backward()
    assert x.grad is None
    assert y.grad is None


def test_a_signal_handler_may_run_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, loss = two_leaves()
    before = signal.signal(signal.SIGUSR1, lambda *_: (x * 10.0).sum().backward())
    in_the_middle(monkeypatch, lambda: signal.raise_signal(signal.SIGUSR1))
    try:
        with mg.Engine("local"):
            loss.backward()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (x.grad.tolist(), y.grad.tolist()) == ([12.0], [3.0])


def test_a_second_backward_adds_to_the_first() -> None:
    x, y, loss = two_leaves()
    with mg.Engine("local"):
        loss.backward(retain_graph=True)
        kept = x.grad
        y.grad = None
        loss.backward()
    assert x.grad is kept
    assert (x.grad.tolist(), y.grad.tolist()) == ([4.0], [3.0])


def test_a_gradient_that_cannot_be_written_is_replaced_under_create_graph() -> None:
    x = mg.ones(3, requires_grad=True)
    x.grad = mg.ones(1).expand(3)
    with pytest.raises(RuntimeError, match="read-only"):
        (x * x).sum().backward()
    assert x.grad.tolist() == [1.0] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cycle
        (x * x).sum().backward(create_graph=True)
    assert x.grad.tolist() == [3.0] * 3
    assert x.grad.requires_grad
    x.grad = None
