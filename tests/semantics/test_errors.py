"""Group L: what a failing backward raises, what it warns of, and that the next one works."""

from __future__ import annotations

import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.errors import CoordinatorLost, EngineClosed
from tests.semantics.paired import error_of, leaf, paired, row


class Mine(Exception):
    """Cannot be made from its ``args``."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.code, self.reason = code, reason


class OldWay(UserWarning):
    """Has an attribute of its own."""

    def __init__(self, text: str, level: int) -> None:
        super().__init__(text)
        self.level = level


def function(lib: Any, rule: Any) -> Any:
    """A Function that doubles, whose backward (on a worker, in mpgrad) is ``rule``."""

    class Doubles(lib.autograd.Function):  # type: ignore[name-defined, misc]
        run_on = "worker"

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return rule(grad)

    return Doubles.apply


def raises(error: type[BaseException], *args: Any, **kwargs: Any) -> Any:
    def rule(_: Any) -> Any:
        raise error(*args, **kwargs)

    return rule


# ---------------------------------------------------------------------- errors


@paired("L1")
def test_the_error_of_a_function_is_the_callers(lib: Any) -> Any:
    fails = function(lib, raises(Mine, 7, reason="because"))
    x = leaf(lib, 3)
    error = error_of(lambda: fails(x).sum().backward(), "code 7")
    assert isinstance(error, Mine)
    return error.code, error.reason, error.args, x.grad


@paired("L1")
def test_the_error_of_a_hook_is_the_callers(lib: Any) -> Any:
    raised = Mine(3, reason="in a hook")

    def hook(_: Any) -> None:
        raise raised

    x = leaf(lib, 3)
    y = x.exp()
    y.register_hook(hook)
    error = error_of(lambda: (y * 2).sum().backward(), "in a hook")
    assert error is raised
    return error, x.grad


@paired("L1")
def test_the_first_of_several_errors_wins(lib: Any) -> Any:
    """First in the order of the serial engine, wherever the Functions run."""
    x = leaf(lib, 3)
    branches = [function(lib, raises(ValueError, f"branch {n}"))(x) for n in range(6)]
    total = branches[0]
    for branch in branches[1:]:
        total = total + branch
    error = error_of(total.sum().backward)
    return error, str(error)


@paired("L1")
def test_what_comes_before_a_failing_hook_has_run(lib: Any) -> Any:
    seen: list[str] = []
    x = leaf(lib, 3)
    h = x
    for name in "dcba":
        h = h * 2

        def hook(_: Any, name: str = name) -> None:
            seen.append(name)
            if name == "c":
                raise LookupError("at c")

        h.register_hook(hook)
    return error_of(h.sum().backward, "at c"), seen


@paired("L1")
def test_other_backwards_go_on(lib: Any) -> Any:
    """A backward of another thread is not touched by the failure of one."""
    begun, failed = threading.Event(), threading.Event()
    z = leaf(lib, 4)

    def wait(_: Any) -> None:
        begun.set()
        assert failed.wait(60)

    def other() -> None:
        y = z * z
        y.register_hook(wait)
        y.sum().backward()

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(60)
    error = error_of(
        lambda: function(lib, raises(ValueError, "mine"))(leaf(lib, 2)).sum().backward()
    )
    failed.set()
    thread.join()
    return error, z.grad


@paired("L2")
def test_the_next_backward_works(lib: Any) -> Any:
    x = leaf(lib, 3)
    grads = []
    for kind in (ValueError, KeyError, ZeroDivisionError):
        error_of(lambda kind=kind: function(lib, raises(kind, "x"))(x).sum().backward())
        x.grad = None
        (x * x).sum().backward()
        grads.append(x.grad)
    return grads, lib.is_grad_enabled()


@paired("L2")
def test_the_same_graph_works_once_its_hook_does(lib: Any) -> Any:
    fails = [True]

    def hook(_: Any) -> None:
        if fails.pop():
            fails.append(False)
            raise ValueError("once")
        fails.append(False)

    x = leaf(lib, 3)
    y = x * x
    y.register_hook(hook)
    total = y.sum()
    error = error_of(lambda: total.backward(retain_graph=True), "once")
    total.backward()
    return error, x.grad


@paired("L2")
def test_grad_mode_is_what_it_was(lib: Any) -> Any:
    def hook(_: Any) -> None:
        lib.set_grad_enabled(True).__enter__()
        raise ValueError("inside")

    y = leaf(lib, 2) * 2
    y.register_hook(hook)
    with lib.no_grad():
        pass
    error_of(y.sum().backward, "inside")
    with lib.no_grad():
        inside = lib.is_grad_enabled()
    return inside, lib.is_grad_enabled()


@paired("L1")
def test_a_chain_of_causes(lib: Any) -> Any:
    def rule(_: Any) -> Any:
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("while looking") from error

    error = error_of(lambda: function(lib, rule)(leaf(lib, 2)).sum().backward(), "while looking")
    return error, "KeyError: 'missing'" in text_of(error)


@paired("L8")
def test_the_traceback_names_the_failing_line(lib: Any) -> Any:
    def rule(grad: Any) -> Any:
        return grad / [][5]  # the very line

    error = error_of(lambda: function(lib, rule)(leaf(lib, 2)).sum().backward())
    return error, "# the very line" in text_of(error)


@paired("L8")
def test_the_traceback_of_a_hook_is_kept(lib: Any) -> Any:
    def hook(grad: Any) -> Any:
        return grad / [][5]  # in a hook

    y = leaf(lib, 2) * 2
    y.register_hook(hook)
    error = error_of(y.sum().backward)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return error, last.name, last.line


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# ---------------------------------------------------------------------- warnings


def warns(*texts: str, category: type[Warning] = UserWarning) -> Any:
    def rule(grad: Any) -> Any:
        for text in texts:
            warnings.warn(text, category, stacklevel=1)
        return grad * 2

    return rule


@paired("L3")
def test_warnings_reach_the_caller_in_order(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = x
    for name in "cba":
        y = function(lib, warns(f"first {name}", f"second {name}"))(y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y.sum().backward()
    return [str(w.message) for w in caught], [w.category.__name__ for w in caught], x.grad


@paired("L3")
def test_warnings_of_branches_come_in_the_serial_order(lib: Any) -> Any:
    x = leaf(lib, 3)
    total = x.sum()
    for n in range(8):
        total = total + function(lib, warns(f"branch {n}"))(x).sum()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        total.backward()
    return [str(w.message) for w in caught]


@paired("L3")
def test_a_warning_keeps_its_class_place_and_attributes(lib: Any) -> Any:
    def rule(grad: Any) -> Any:
        warnings.warn(OldWay("the old way", 3), stacklevel=1)
        return grad

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(lib, rule)(leaf(lib, 2)).sum().backward()
    (warned,) = caught
    assert isinstance(warned.message, OldWay)
    place = Path(warned.filename).name, warned.lineno - rule.__code__.co_firstlineno
    return str(warned.message), warned.message.level, place


@paired("L3")
def test_filters_of_the_caller_decide(lib: Any) -> Any:
    """Those that hold when backward is called, whatever held when the engine was started."""
    x = leaf(lib, 3)
    apply = function(lib, warns("loud", category=RuntimeWarning))
    apply_quiet = function(lib, warns("quiet", category=DeprecationWarning))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("always", RuntimeWarning)
        apply_quiet(apply(x)).sum().backward()
        apply(x).sum().backward()
    return [str(w.message) for w in caught]


@paired("L3")
def test_a_warning_is_shown_once_where_the_filters_say_so(lib: Any) -> Any:
    apply = function(lib, warns("once per place"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        for _ in range(3):
            apply(apply(leaf(lib, 3))).sum().backward()
    return [str(w.message) for w in caught]


@paired("L3")
def test_a_warning_made_an_error_fails_the_backward(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = function(lib, warns("not allowed"))(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = error_of(y.sum().backward, "not allowed")
    return error, x.grad


@paired("L3")
def test_warnings_of_a_failing_backward_are_shown(lib: Any) -> Any:
    x = leaf(lib, 3)
    y = function(lib, warns("before"))(function(lib, raises(ValueError, "then"))(x))
    z = function(lib, raises(ValueError, "then"))(function(lib, warns("never"))(x))
    shown = []
    for root in (function(lib, warns("also before"))(y), z):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            error_of(root.sum().backward, "then")
        shown.append([str(w.message) for w in caught])
    return shown


@row("L3")
@pytest.mark.process
def test_warnings_are_shown_on_the_calling_thread(process_engine: mg.Engine) -> None:
    threads: list[int] = []
    x = leaf(mg, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *_: threads.append(threading.get_ident())  # type: ignore[assignment]
        function(mg, warns("a", "b"))(x).sum().backward()
    assert threads == [threading.get_ident()] * 2


# ---------------------------------------------------------------------- an engine that goes away


@pytest.mark.process
def test_an_engine_closed_by_another_thread() -> None:
    engine = mg.Engine("process", cpu_workers=1)
    found: list[BaseException] = []
    x = leaf(mg, 3)

    def close(_: mg.Tensor) -> None:
        thread = threading.Thread(target=engine.close)
        thread.start()
        thread.join()

    with engine:
        y = x.exp()
        y.register_hook(close)
        found.append(error_of((y * 2).sum().backward, "closed"))
    assert isinstance(found[0], EngineClosed)
    assert x.grad is None


@pytest.mark.process
def test_a_coordinator_that_dies_is_told_apart() -> None:
    x = leaf(mg, 3)
    with mg.Engine("process", cpu_workers=1) as engine:
        (x * 1).sum().backward()
        before = x.grad
        y = x.exp()
        y.register_hook(lambda _: kill(engine))
        error = error_of((y * 2).sum().backward, "SIGKILL")
        assert isinstance(error, CoordinatorLost)
        assert x.grad is before
        (x * 1).sum().backward()
    assert np.array_equal(x.grad.numpy(), np.full(3, 2.0))


def kill(engine: mg.Engine) -> None:
    import os
    import signal

    assert engine.coordinator_pid is not None
    os.kill(engine.coordinator_pid, signal.SIGKILL)


# ---------------------------------------------------------------------- no derivative


@paired("L7")
def test_an_operator_without_a_derivative(lib: Any) -> Any:
    x, y = leaf(lib, 3), leaf(lib, 3, seed=1)
    z = x // y
    error = error_of(z.sum().backward, "derivative for", "floor_divide is not implemented")
    return z.requires_grad, error, x.grad, y.grad


@paired("L7")
def test_it_does_no_harm_where_backward_does_not_come_by(lib: Any) -> Any:
    x = leaf(lib, 3)
    steps = x // 0.5
    (x * steps.detach()).sum().backward()
    (w,) = lib.autograd.grad((x * 2 + steps.detach()).sum(), x)
    return x.grad, w


@paired("L7")
def test_division_with_rounding_has_a_gradient_of_zero(lib: Any) -> Any:
    x, y = leaf(lib, 3), leaf(lib, 3, seed=1)
    z = lib.div(x, y, rounding_mode="floor")
    z.sum().backward()
    return z, x.grad, y.grad


# ---------------------------------------------------------------------- NumPy's error state


# torch has no such state: what follows is NumPy's.
@paired("M11", torch=False)
def test_numpys_error_state_is_the_callers(lib: Any) -> Any:
    x = leaf(lib, 3)

    def divide() -> Any:
        y = lib.tensor([0.0, 1.0, 2.0], requires_grad=True)
        with np.errstate(all="ignore"):
            z = y.sqrt()
        z.sum().backward()
        return y.grad

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warned = divide()
        with np.errstate(divide="ignore"):
            silent = divide()
    with np.errstate(divide="raise"):
        error = error_of(divide, "divide by zero")
    assert isinstance(error, FloatingPointError)
    return warned, silent, [str(w.message) for w in caught], error, x.grad
