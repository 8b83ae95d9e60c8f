"""A Function that a worker has run is run again in the client, and has to give the same bits."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.engine import spot_checks
from mpgrad.errors import ResultsDiffer
from tests.process.conftest import check_usable

pytestmark = pytest.mark.process


class Honest(mg.Function):
    """Changes its gradient in place, and reads all that a ctx may hold."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.save_for_backward(x)
        ctx.weights, ctx.sizes = np.arange(3.0), [1, 2]
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        grad.mul_(3)
        return grad * ctx.saved_tensors[0] * ctx.weights * len(ctx.sizes)


class Addresses(mg.Function):
    """Its gradient depends on where an object lies."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        address = repr(object()).rpartition("x")[2].rstrip(">")
        return grad * (int(address, 16) * SCALE)


SCALE = 2.0


class Promised(mg.Function):
    """Whoever sets ``run_on`` says that it makes no difference."""

    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * float(os.getpid())


@pytest.fixture
def every_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[mg.Engine]:
    monkeypatch.setattr(spot_checks, "SAMPLED_EVERY", 1)
    with mg.Engine("process", cpu_workers=1) as engine:
        yield engine
        check_usable()


def leaf() -> mg.Tensor:
    return mg.tensor([1.0, 2.0, 3.0], requires_grad=True)


def test_what_is_honest_passes(every_one: mg.Engine) -> None:
    x = leaf()
    y = mg.stack([Honest.apply(x) for _ in range(3)]).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [0.0, 72.0, 216.0]
    assert every_one.statistics().spot_checks == 6


def test_a_difference_names_the_function_and_what_it_reads(every_one: mg.Engine) -> None:
    x = mg.tensor([1.0, 2.0, 3.0], dtype=mg.float64, requires_grad=True)
    with pytest.raises(ResultsDiffer) as caught:
        Addresses.apply(x).sum().backward()
    for words in (
        "AddressesBackward gave another gradient on a worker",
        "for argument 1 of forward 3 of 3 elements differ, the first at (0,): ",
        "reads SCALE;",
        'Set run_on = "client" on Addresses',
        "No .grad was changed",
    ):
        assert words in str(caught.value)
    assert x.grad is None


def test_an_error_here_is_a_difference(
    every_one: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*args: Any) -> None:
        raise LookupError("not here")

    monkeypatch.setattr(spot_checks, "run_function_backward", refuses)
    with pytest.raises(ResultsDiffer, match="here it raised LookupError: not here"):
        Honest.apply(leaf()).sum().backward()


def test_one_in_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_checks, "SAMPLED_EVERY", 4)
    monkeypatch.setattr(spot_checks, "FIRST_BACKWARDS", 0)
    with mg.Engine("process", cpu_workers=1) as engine:
        mg.stack([Honest.apply(leaf()) for _ in range(10)]).sum().backward()
        assert engine.statistics().spot_checks == 2


def test_cheap_functions_are_checked_in_their_first_backwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spot_checks, "FIRST_BACKWARDS", 2)
    for limit_us, checked in ((1e9, [1, 2, 2]), (0.0, [0, 0, 0])):
        monkeypatch.setattr(spot_checks, "CHEAP_US", limit_us)
        with mg.Engine("process", cpu_workers=1) as engine:
            for count in checked:
                mg.stack([Honest.apply(leaf()) for _ in range(3)]).sum().backward()
                assert engine.statistics().spot_checks == count


class Talks(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        print("in backward")
        logging.getLogger("talks").warning("in backward")
        return grad * 2


@pytest.mark.parametrize(("check", "count"), [("sample", 1), ("all", 2)])
def test_what_is_printed_and_logged_comes_once(
    check: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(spot_checks, "SAMPLED_EVERY", 1)
    with mg.Engine("process", cpu_workers=1, check=check):
        Talks.apply(leaf()).sum().backward()
    assert capsys.readouterr().out.count("in backward") == count
    assert len(caplog.messages) == count


def test_promises_are_kept_to_yourself_unless_all_are_checked() -> None:
    for check, seen in (("sample", False), ("off", False), ("all", True)):
        with (
            pytest.MonkeyPatch.context() as patch,
            mg.Engine("process", cpu_workers=1, check=check) as engine,
        ):
            patch.setattr(spot_checks, "SAMPLED_EVERY", 1)
            if seen:
                with pytest.raises(ResultsDiffer, match="PromisedBackward"):
                    Promised.apply(leaf()).sum().backward()
            else:
                Promised.apply(leaf()).sum().backward()
            assert engine.statistics().spot_checks == seen


def test_a_wrong_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"Engine\(check='often'\): it must be one of off, sample"):
        mg.Engine(check="often")
    monkeypatch.setenv("MPGRAD_CHECK", "often")
    with pytest.raises(ValueError, match="MPGRAD_CHECK='often': expected one of off, sample, all"):
        mg.Engine()


class Saves(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * ctx.saved_tensors[0]


def test_a_function_that_was_released_for_a_hook(every_one: mg.Engine) -> None:
    x = mg.ones(3, requires_grad=True)
    y = x * 2.0
    y.register_hook(lambda grad: None)
    Saves.apply(y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0] * 3
