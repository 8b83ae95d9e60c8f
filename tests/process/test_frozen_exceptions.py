"""Exceptions of classes that refuse attributes: they reach the caller as they were raised."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    saved_tensors_hooks,
)
from mpgrad.base.context_manager import contextmanager
from mpgrad.ops.generators import fork_rng
from mpgrad.utils.checkpoint import checkpoint, set_checkpoint_early_stop

pytestmark = pytest.mark.process


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Refuses(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"no {name}")


class Raises(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, kind: str) -> mg.Tensor:
        ctx.kind = kind
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        raise Frozen(5) if ctx.kind == "frozen" else Refuses(5)


class Promises(Raises):
    run_on = "worker"


def leaf() -> mg.Tensor:
    return mg.ones(1, requires_grad=True)


def raise_it(*_: Any) -> Any:
    raise Frozen(5)


def in_backward() -> None:
    Raises.apply(leaf(), "frozen").sum().backward()


def promised() -> None:
    Promises.apply(leaf(), "frozen").sum().backward()


def under_create_graph() -> None:
    x = leaf()
    mg.autograd.grad(Raises.apply(x, "frozen").sum(), x, create_graph=True)


def in_anomaly_mode() -> None:
    with mg.autograd.detect_anomaly(check_nan=False):
        in_backward()


def in_a_hook() -> None:
    y = leaf() * 2
    y.register_hook(raise_it)
    y.sum().backward()


def in_an_unpack_hook() -> None:
    x = leaf()
    with saved_tensors_hooks(lambda t: t, raise_it):
        y = x * x
    y.sum().backward()


def in_a_checkpoint() -> None:
    calls: list[int] = []

    def again(x: mg.Tensor) -> mg.Tensor:
        calls.append(1)
        return x * x if len(calls) == 1 else raise_it()

    checkpoint(again, leaf(), use_reentrant=False).sum().backward()


def within(context: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with context():
            raise_it()

    return run


WAYS: dict[str, Callable[[], None]] = {
    "backward": in_backward,
    "promised": promised,
    "create_graph": under_create_graph,
    "anomaly": in_anomaly_mode,
    "hook": in_a_hook,
    "unpack": in_an_unpack_hook,
    "checkpoint": in_a_checkpoint,
    "early stop": within(lambda: set_checkpoint_early_stop(True)),
    "mutation": within(allow_mutation_on_saved_tensors),
    "no hooks": within(lambda: disable_saved_tensors_hooks("none")),
    "random state": within(fork_rng),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_a_frozen_exception(engine: mg.Engine, way: str) -> None:
    for other in (contextlib.nullcontext(), mg.Engine("local")):
        with other, pytest.raises(Frozen) as caught:
            WAYS[way]()
        assert type(caught.value) is Frozen
        assert caught.value.code == 5


@pytest.mark.filterwarnings("ignore")
def test_an_exception_that_takes_no_attributes(engine: mg.Engine) -> None:
    for other in (mg.Engine("local"), contextlib.nullcontext()):
        x = leaf()
        with other, pytest.raises(Refuses) as caught:
            Raises.apply(x, "refuses").sum().backward()
        assert type(caught.value) is Refuses
        assert caught.value.args == (5,)


# ---------------------------------------------------------------------- our contextmanager


@contextmanager
def watched(seen: list[Any], *, swallows: bool = False) -> Any:
    try:
        yield 3
    except BaseException as error:
        seen.append(error)
        if not swallows:
            raise
    finally:
        seen.append("left")


def test_what_passes_a_context_manager() -> None:
    for error in (Frozen(1), StopIteration(2), RuntimeError("x"), KeyboardInterrupt()):
        seen: list[Any] = []
        with pytest.raises(type(error)) as caught, watched(seen) as given:
            raise error
        assert caught.value is error
        assert (given, seen) == (3, [error, "left"])
    with watched(seen := [], swallows=True):
        raise_it()
    assert seen[0] == Frozen(5)


def test_what_a_context_manager_raises_itself() -> None:
    @contextmanager
    def turns() -> Any:
        try:
            yield
        except Frozen:
            raise KeyError("turned") from None

    with pytest.raises(KeyError, match="turned"), turns():
        raise_it()

    @contextmanager
    def yields_twice() -> Any:
        try:
            yield
        except Frozen:
            yield

    with pytest.raises(RuntimeError, match="didn't stop after throw"), yields_twice():
        raise_it()

    @turns()
    def decorated() -> None:
        raise_it()

    with pytest.raises(KeyError, match="turned"):
        decorated()
