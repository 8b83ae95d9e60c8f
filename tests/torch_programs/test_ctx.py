"""What a parallelized backward sees of its ctx, and what it changes there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from mpgrad.errors import PerformanceWarning  # noqa: E402
from mpgrad.parallel import placing  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(scope="module", params=["local", "process", "auto"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    with mg.Engine(request.param, cpu_workers=1) as engine:
        yield engine


def function(setup: Callable[[Any], Any], factor: Callable[[Any], float]) -> Any:
    """A new class, whose gradient is ``factor(ctx)``."""

    class Changes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            setup(ctx)
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * factor(ctx)

    return Changes


def gradients(cls: Any) -> list[float]:
    """Of three backwards through one graph."""
    x = torch.ones((), requires_grad=True)
    y = cls.apply(x)
    return [torch.autograd.grad(y, x, retain_graph=True)[0].item() for _ in range(3)]


def counted(ctx: Any) -> float:
    ctx.n += 1
    return float(ctx.n)


def appended(ctx: Any) -> float:
    ctx.n.append(len(ctx.n))
    return float(sum(ctx.n) + 1)


def appended_deeper(ctx: Any) -> float:
    ctx.n["list"][0].append(1)
    ctx.n[len(ctx.n)] = [0]
    return float(len(ctx.n["list"][0]) + 10 * len(ctx.n))


def set_once(ctx: Any) -> float:
    if ctx.n is None:
        ctx.n = torch.full((), 7.0)
        ctx.table = {"same": ctx.n}
        return 1.0
    return float(ctx.n) + float(ctx.table["same"] is ctx.n)


def removed(ctx: Any) -> float:
    if not hasattr(ctx, "n"):
        return 2.0
    del ctx.n
    return 1.0


@pytest.mark.parametrize(
    ("initial", "factor"),
    [
        (lambda: 0, counted),
        (list, appended),
        (lambda: {"list": ([],)}, appended_deeper),
        (lambda: None, set_once),
        (lambda: 0, removed),
    ],
)
def test_what_a_backward_changes_stays(engine: mg.Engine, initial: Any, factor: Any) -> None:
    def setup(ctx: Any) -> None:
        ctx.n = initial()

    cls = function(setup, factor)
    wanted = gradients(cls)
    mt.parallelize(cls)
    assert gradients(cls) == wanted


LOG: list[float] = []


class Counter:
    n = 0


def appended_to_log(ctx: Any) -> float:
    ctx.n.append(1.0)
    return 1.0


def counted_in_object(ctx: Any) -> float:
    ctx.n.n += 1
    return 1.0


def written(ctx: Any) -> float:
    ctx.n += 1
    return 1.0


def written_tensor(ctx: Any) -> float:
    ctx.n[0].add_(1)
    return 1.0


def drawn(ctx: Any) -> float:
    return float(torch.rand((), generator=ctx.n))


def locked(ctx: Any) -> float:
    ctx.n = threading.Lock()
    return 1.0


@pytest.mark.parametrize(
    ("initial", "factor", "error"),
    [
        (lambda: LOG, appended_to_log, "`ctx.n` in place, which something else holds"),
        (lambda: [LOG], lambda ctx: ctx.n[0].append(1.0) or 1.0, "`ctx.n` in place, which"),
        (Counter, counted_in_object, "`ctx.n` in place"),
        (lambda: [torch.zeros(2)], written_tensor, "`ctx.n` in place"),
        (lambda: np.zeros(2), written, "in place"),
        (lambda: torch.Generator(), drawn, "`ctx.n` in place"),
        (lambda: None, locked, "has set `ctx.n` to something that cannot travel"),
    ],
)
def test_what_cannot_come_back_is_an_error(
    engine: mg.Engine, initial: Any, factor: Any, error: str
) -> None:
    def setup(ctx: Any) -> None:
        ctx.n = initial()

    cls = function(setup, factor)
    mt.parallelize(cls)
    for _ in range(4):  # in each call, not only in the first ones
        with pytest.raises(RuntimeError, match=error):
            gradients(cls)


def test_a_ctx_that_cannot_travel_is_torchs_own(engine: mg.Engine) -> None:
    if not engine.worker_pids():
        return

    def setup(ctx: Any) -> None:
        ctx.n, ctx.lock = Counter(), threading.Lock()

    cls = function(setup, lambda ctx: counted_in_object(ctx) * ctx.n.n)
    mt.parallelize(cls)
    with pytest.warns(PerformanceWarning, match="runs in the calling process"):
        assert gradients(cls) == [1.0, 2.0, 3.0]


def test_what_torchs_ctx_has(engine: mg.Engine) -> None:
    def factor(ctx: Any) -> float:
        ctx.set_materialize_grads(False)
        assert isinstance(ctx, torch.autograd.function.FunctionCtx)
        return float(len(ctx.name()))

    cls = function(lambda ctx: None, factor)
    wanted = gradients(cls)
    mt.parallelize(cls)
    assert gradients(cls) == wanted


def test_a_gradient_for_what_is_no_tensor_is_torchs_error(engine: mg.Engine) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, k: float) -> Any:
            return x * k

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, grad

    x = torch.ones(2, requires_grad=True)
    told = []
    for parallel in (False, True):
        if parallel:
            mt.parallelize(Scaled)
        out = Scaled.apply(x, 2.0).sum()
        with pytest.raises(RuntimeError, match="different than None at position 2") as caught:
            out.backward()
        told.append(str(caught.value))
    assert told[0] == told[1]


CALLS: list[int] = []


def test_the_error_of_a_changed_global_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "RUNS", placing.Runs())  # the first call is compared

    class Notes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            CALLS.append(1)
            return grad

    mt.parallelize(Notes)
    x = torch.ones((), requires_grad=True)
    with (
        mg.Engine("process", cpu_workers=1),
        pytest.raises(RuntimeError, match=r"changed `CALLS`.*do not call parallelize\(\)") as error,
    ):
        Notes.apply(x).backward()
    assert "parallel_map" not in str(error.value)
