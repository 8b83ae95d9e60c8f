"""A Function that raises on a worker is not yet an error: the backward runs again in the client."""

from __future__ import annotations

import logging
import os
import re
import signal
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.calls.custom_functions import run_on
from mpgrad.calls.custom_functions.attributes import Look
from mpgrad.calls.custom_functions.findings import Survey
from mpgrad.calls.custom_functions.purity import survey
from mpgrad.engine import placement, preparation
from mpgrad.errors import PerformanceWarning, RemoteTraceback, WorkerLost
from tests.process.test_local_share import plan_with_any_part

pytestmark = pytest.mark.process

CLIENT = os.getpid()


def function_of(backward: Callable[..., Any], **attributes: Any) -> type[mg.Function]:
    """A new Function that saves its input and doubles it, with this backward."""

    def forward(ctx: Any, x: mg.Tensor, *arguments: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.arguments, ctx.count = arguments, 0
        return x.numpy() * 2

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward), **attributes}
    return type(backward.__name__, (mg.Function,), members)


def grad_of(x: mg.Tensor) -> list[float]:
    assert x.grad is not None
    return list(x.grad.tolist())


def gradient(function: type[mg.Function], *arguments: Any) -> list[float]:
    """That of a sum of three branches."""
    x = mg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    mg.stack([function.apply(x * k, *arguments).sum() for k in (1.0, 2.0, 3.0)]).sum().backward()
    return grad_of(x)


def in_local(function: type[mg.Function], *arguments: Any) -> list[float]:
    with mg.Engine("local"):
        return gradient(function, *arguments)


def writes_into_saved(ctx: Any, grad: mg.Tensor) -> Any:
    (x,) = ctx.saved_tensors
    array = x.numpy()
    array *= 3.0  # twice would give another gradient
    return grad * mg.tensor(array)


def writes_and_hides_it(ctx: Any, grad: mg.Tensor) -> Any:
    array = ctx.saved_tensors[0].numpy()
    np.negative(array, out=array)
    return grad.numpy() * array


def sorts_saved(ctx: Any, grad: mg.Tensor) -> Any:
    array = ctx.saved_tensors[0].numpy()
    array[::-1].sort()
    return grad.numpy() * array


def asks_for_its_name(ctx: Any, grad: mg.Tensor) -> Any:
    return grad * len(ctx.name())


def is_at_home_in_one_process(ctx: Any, grad: mg.Tensor) -> Any:
    if os.getpid() != CLIENT:
        raise OSError("no licence for this process")
    return grad * 5.0


def exits_elsewhere(ctx: Any, grad: mg.Tensor) -> Any:
    if os.getpid() != CLIENT:
        raise SystemExit(3)
    return grad * 7.0


def draws_behind_a_name(ctx: Any, grad: mg.Tensor) -> Any:
    layer = mg.nn.Linear(1, 1)
    return grad * float(layer.weight.detach().sum() * 0.0 + 2.0)


def returns_another_shape_elsewhere(ctx: Any, grad: mg.Tensor) -> Any:
    return grad * 2.0 if os.getpid() == CLIENT else grad[:1]


class Power(mg.Function):
    """Its backward applies it again, by the name that programs use."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, n: float = 3.0) -> Any:
        ctx.save_for_backward(x)
        ctx.n = n
        return np.power(x.numpy(), n)

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * ctx.n * power(x, ctx.n - 1), None


power = Power.apply


class Unpicklable:
    """Passes every examination as a value that nobody else holds, but cannot travel."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __reduce__(self) -> Any:
        raise TypeError("stays at home")


BODIES = [
    writes_into_saved,
    writes_and_hides_it,
    sorts_saved,
    asks_for_its_name,
    is_at_home_in_one_process,
    exits_elsewhere,
    draws_behind_a_name,
    returns_another_shape_elsewhere,
]


def survey_without_problems(*arguments: Any, **options: Any) -> Survey:
    found = survey(*arguments, **{**options, "is_promised": True})
    found.problems.clear()
    return found


@pytest.fixture(params=["process", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def everywhere(mode: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[mg.Engine]:
    """An engine that uses its workers from the first backward on; with "auto" the calling thread
    also takes part. What a Function reads keeps none of them in the client."""
    monkeypatch.setattr(run_on, "survey", survey_without_problems)
    monkeypatch.setattr(run_on, "_kept_here", weakref.WeakKeyDictionary())
    if mode == "auto":
        monkeypatch.setattr(preparation, "plan", plan_with_any_part)
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_the_result_of_local_counts(body: Callable[..., Any], everywhere: mg.Engine) -> None:
    function = function_of(body)
    want = in_local(function)
    with pytest.warns(PerformanceWarning, match="raised") as said:
        assert gradient(function) == want
    assert len([w for w in said if w.category is PerformanceWarning]) == 1
    for _ in range(3):  # it stays in the client, without another word
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gradient(function) == want
    assert everywhere.statistics().failed == 0


def test_a_function_that_applies_itself(everywhere: mg.Engine) -> None:
    want = in_local(Power)
    with pytest.warns(PerformanceWarning, match="Power.forward was called") as said:
        assert gradient(Power) == want
    assert "Power runs in this process from now on" in str(said[0].message)
    x = mg.ones(3, requires_grad=True)
    assert "Power runs in this process from now on" in str(everywhere.explain(Power.apply(x).sum()))


def test_the_warning_has_the_remedy(everywhere: mg.Engine) -> None:
    with pytest.warns(PerformanceWarning) as said:
        gradient(function_of(writes_into_saved))
    assert "ValueError: output array is read-only" in str(said[0].message)
    assert ".copy()" in str(said[0].message)
    with pytest.warns(PerformanceWarning) as said:
        gradient(function_of(asks_for_its_name))
    assert 'run_on = "client" on asks_for_its_name' in str(said[0].message)
    assert 'run_on = "worker"' not in str(said[0].message)


def prints_and_fails(ctx: Any, grad: mg.Tensor) -> Any:
    (k,) = ctx.arguments
    print(f"branch {k}")
    logging.getLogger("user").warning("log %s", k)
    warnings.warn(f"warned {k}", stacklevel=1)
    if k == 2:
        raise ZeroDivisionError(f"of branch {k}")
    return grad * 2.0, None


def branches(function: type[mg.Function], count: int = 4) -> mg.Tensor:
    x = mg.ones(3, requires_grad=True)
    return mg.stack([function.apply(x * 1.0, k).sum() for k in range(count)]).sum()


def test_an_error_of_both_is_shown_once(
    everywhere: mg.Engine, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    function = function_of(prints_and_fails)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(ZeroDivisionError, match="of branch 2") as caught:
            branches(function).backward()
    error = caught.value
    assert error.__context__ is None
    assert not isinstance(error.__cause__, RemoteTraceback)
    assert "raised in" not in str(getattr(error, "__notes__", ""))
    printed = [line.partition("] ")[2] or line for line in capsys.readouterr().out.splitlines()]
    assert sorted(printed) == sorted(set(printed))
    assert {"branch 2", "branch 3"} <= set(printed)
    logged = [record.message.partition("] ")[2] or record.message for record in caplog.records]
    assert sorted(logged) == sorted(set(logged))
    assert {"log 2", "log 3"} <= set(logged)
    texts = [str(warning.message) for warning in said]
    assert texts == ["warned 3", "warned 2"]
    # Its Function was right to be there.
    assert "runs in this process" not in str(everywhere.explain(branches(function)))


def test_what_differs_is_shown(everywhere: mg.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    def says_where(ctx: Any, grad: mg.Tensor) -> Any:
        print("here" if os.getpid() == CLIENT else "there")
        print("and the rest of a line", end="")
        return grad * len(ctx.name())

    with pytest.warns(PerformanceWarning):
        function_of(says_where).apply(mg.ones(3, requires_grad=True)).sum().backward()
    out = capsys.readouterr().out
    assert re.fullmatch(r"\[worker \d\] there\n\[worker \d\] and the rest of a line\nhere\n", out)


def test_a_promise_makes_the_error_of_the_worker_stand(everywhere: mg.Engine) -> None:
    function = function_of(writes_into_saved, run_on="worker")
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only") as caught:
            gradient(function)
        assert any("on worker" in note for note in caught.value.__notes__)


def test_hooks_do_not_run_twice(everywhere: mg.Engine) -> None:
    function, calls = function_of(writes_into_saved), list[float]()

    def run() -> mg.Tensor:
        x = mg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = function.apply(x)
        y.register_hook(lambda grad: calls.append(1.0))
        y.sum().backward()
        return x

    with pytest.raises(ValueError, match="read-only") as caught:
        run()
    assert calls == [1.0]
    assert "not run again in this process" in "".join(caught.value.__notes__)
    assert grad_of(run()) == [3.0, 6.0, 9.0]
    assert calls == [1.0, 1.0]


def ends(ctx: Any, grad: mg.Tensor) -> Any:
    (how,) = ctx.arguments
    if os.getpid() != CLIENT:
        if how == "memory":
            raise MemoryError("no more")
        os.kill(os.getpid(), signal.SIGKILL)
    return grad, None


@pytest.mark.slow
@pytest.mark.parametrize(("how", "error"), [("death", WorkerLost), ("memory", MemoryError)])
def test_other_ends_move_nothing(how: str, error: type[Exception], everywhere: mg.Engine) -> None:
    function = function_of(ends)
    for _ in range(2):
        with pytest.raises(error):
            function.apply(mg.ones(3, requires_grad=True), how).sum().backward()


class Counts(mg.Function):
    """It costs a few milliseconds, so that the branches are shared out."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, fails: bool) -> Any:
        ctx.fails, ctx.count = fails, 0
        return x.numpy() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        sum(range(100_000))
        ctx.count += 1
        if ctx.fails and os.getpid() != CLIENT:
            raise ValueError("elsewhere")
        return grad * float(ctx.count), None


@pytest.mark.parametrize("mode", ["auto"], indirect=True)
def test_what_ctx_holds_is_as_it_was_before_the_second_run(everywhere: mg.Engine) -> None:
    """The calling thread has run its part when a worker raises."""

    def run(*, fails: bool) -> list[float]:
        x = mg.ones(4, requires_grad=True)
        mg.stack([Counts.apply(x * 1.0, fails).sum() for _ in range(8)]).sum().backward()
        return grad_of(x)

    def runs() -> None:
        for at in range(8):
            assert run(fails=at > 3) == [8.0] * 4
        assert everywhere.statistics().tasks["client"]  # the calling thread took part

    with pytest.warns(PerformanceWarning):
        runs()


def test_a_ctx_that_cannot_travel(everywhere: mg.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examination has missed that; the hand-over finds it."""

    def scales(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * ctx.arguments[0].scale, None

    monkeypatch.setattr(placement, "look_at", lambda attributes: Look(""))
    function = function_of(scales)
    with pytest.warns(PerformanceWarning, match="stays at home"):
        assert gradient(function, Unpicklable(2.0)) == [12.0] * 3


def test_after_the_second_run_the_graph_is_used_up(everywhere: mg.Engine) -> None:
    x = mg.ones(3, requires_grad=True)
    y = function_of(writes_into_saved).apply(x).sum()
    with pytest.warns(PerformanceWarning):
        y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_inside_a_hook(everywhere: mg.Engine) -> None:
    """The backward inside runs again; the hook does not."""
    function, inner, calls = function_of(asks_for_its_name), list[Any](), list[int]()

    def hook(grad: mg.Tensor) -> None:
        calls.append(1)
        with mg.enable_grad():
            x = mg.ones(3, requires_grad=True)
            # A small graph would run here.
            mg.stack([function.apply(x).sum() for _ in range(40)]).sum().backward()
        inner.append(grad_of(x))

    x = mg.ones(3, requires_grad=True)
    y = x * 2.0
    y.register_hook(hook)
    with pytest.warns(PerformanceWarning):
        y.sum().backward()
    assert (inner, calls) == ([[len("asks_for_its_nameBackward") * 40.0] * 3], [1])
    assert grad_of(x) == [2.0] * 3


def test_a_warning_that_is_an_error_changes_no_grad(everywhere: mg.Engine) -> None:
    x = mg.ones(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        with pytest.raises(PerformanceWarning):
            function_of(asks_for_its_name).apply(x).sum().backward()
    assert x.grad is None


def test_a_filter_of_the_user_counts_each_record_once(everywhere: mg.Engine) -> None:
    counted: list[str] = []

    def logs(ctx: Any, grad: mg.Tensor) -> Any:
        logging.getLogger("counted").warning("once")
        return writes_into_saved(ctx, grad)

    def count(record: logging.LogRecord) -> bool:
        counted.append(record.getMessage())
        return False

    logger, x = logging.getLogger("counted"), mg.ones(3, requires_grad=True)
    logger.addFilter(count)
    try:
        with pytest.warns(PerformanceWarning, match="read-only"):
            function_of(logs).apply(x).sum().backward()
    finally:
        logger.removeFilter(count)
    assert len(counted) == 1
