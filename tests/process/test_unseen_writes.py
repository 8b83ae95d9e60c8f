"""Functions whose compiled code writes memory that NumPy calls read-only: an error, and nobody else
sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.process.conftest import check_usable

pytestmark = pytest.mark.process

#: Numbers that travel inside a message, and that lie in the arena.
SMALL, LARGE = 4, 3000


@pytest.fixture(scope="module")
def engine() -> Iterator[mg.Engine]:
    """One of which no worker dies."""
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine


@pytest.fixture
def own_engine() -> Iterator[mg.Engine]:
    with mg.Engine("process", cpu_workers=2) as engine:
        yield engine
        check_usable()


def clear(array: Any) -> None:
    """As compiled code does it, which does not look whether it may."""
    ctypes.memset(array.__array_interface__["data"][0], 0, array.nbytes)


class Writes(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        return x.detach() * 2


class WritesSaved(Writes):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        clear(x.numpy())
        return grad * x


@dataclass(frozen=True)
class Held:
    array: Any


class WritesHeld(Writes):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor) -> Any:
        ctx.held = Held(x.numpy() + 1)
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(ctx.held.array)
        return grad * mg.tensor(ctx.held.array.copy())


class WritesGradient(Writes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(grad.numpy())
        return grad * 2


TABLE = np.arange(1.0, 7.0).reshape(2, 3)
COLUMNS = np.asfortranarray(TABLE)
ROWS = np.ones(2, [("a", "f8"), ("b", "i4")])
NUMBER = np.array(5.0)
FLAG = np.array(True)
HELD = Held(np.arange(1.0, 4.0))


class WritesGlobal(Writes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(TABLE)
        return grad * float(TABLE.sum())


class WritesColumns(Writes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(COLUMNS)
        return grad * float(COLUMNS.sum())


class WritesRows(Writes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(ROWS)
        return grad * float(ROWS["a"].sum())


class WritesNumber(Writes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(NUMBER)
        return grad * float(NUMBER)


class WritesFlag(Writes):
    """Python has one object for all bytes of length 1 with that value."""

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(FLAG)
        return grad * float(FLAG)


class WritesGlobalHeld(Writes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        clear(HELD.array)
        return grad * float(HELD.array.sum())


def cleared(array: Any = np.arange(1.0, 4.0)) -> float:  # noqa: B008 (meant)
    clear(array)
    return float(array.sum())


class WritesDefault(Writes):
    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * cleared()


def over(array: Any) -> type[mg.Function]:
    class WritesClosure(Writes):
        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> Any:
            clear(array)
            return grad * float(array.sum())

    return WritesClosure


@pytest.mark.parametrize("n", [SMALL, LARGE])
@pytest.mark.parametrize("function", [WritesSaved, WritesHeld])
def test_what_travels_with_the_graph(own_engine: mg.Engine, function: Any, n: int) -> None:
    x = mg.ones(n, requires_grad=True)
    y = mg.ones(n, requires_grad=True)
    with pytest.raises(RuntimeError, match=rf"{function.__name__} has changed .* in place"):
        (function.apply(x) + x * y).sum().backward()
    assert (x.grad, y.grad) == (None, None)
    assert x.tolist() == [1.0] * n
    assert own_engine.statistics().restarts == (n == LARGE), "the fault of one task, once"


def test_the_gradient_of_the_caller(own_engine: mg.Engine) -> None:
    x, seed = mg.ones(LARGE, requires_grad=True), mg.ones(LARGE)
    with pytest.raises(RuntimeError, match=r"WritesGradient has changed .*gradient"):
        WritesGradient.apply(x).backward(seed)
    assert seed.tolist() == [1.0] * LARGE
    assert x.grad is None


def test_a_gradient_that_another_node_gets_too(engine: mg.Engine) -> None:
    x = mg.full((LARGE,), 0.1, requires_grad=True)
    y, z = x * 2, x * 3
    with pytest.raises(RuntimeError, match="WritesGradient has changed a gradient"):
        (WritesGradient.apply(y) + z).exp().sum().backward()
    assert x.grad is None


def test_a_gradient_of_its_own(engine: mg.Engine) -> None:
    for n in (SMALL, LARGE):
        x = mg.ones(n, requires_grad=True)
        (WritesGradient.apply(x) * 2).exp().sum().backward()
        assert x.grad.tolist() == [0.0] * n


@pytest.mark.parametrize(
    ("function", "reader"),
    [
        (WritesGlobal, "reads the global `TABLE`"),
        (WritesColumns, "reads the global `COLUMNS`"),
        (WritesRows, "reads the global `ROWS`"),
        (WritesNumber, "reads the global `NUMBER`"),
        (WritesFlag, "reads the global `FLAG`"),
        (WritesGlobalHeld, r"reads the global `HELD` \(inside a Held\)"),
        (WritesDefault, r"cleared\(\) has a default argument"),
        (over(np.arange(1.0, 4.0)), "reads the closure variable `array`"),
    ],
)
def test_an_array_that_it_reads(engine: mg.Engine, function: Any, reader: str) -> None:
    for _ in range(2):  # the second one finds a copy that nobody has changed
        x = mg.ones(SMALL, requires_grad=True)
        with pytest.raises(RuntimeError, match=reader):
            function.apply(x).sum().backward()
        assert x.grad is None


LIMITS = np.array([1.0, 2.0])


class WritesAndRaises(Writes):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, fails: bool) -> Any:
        ctx.fails = fails
        return x.detach() * 2

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.fails:
            clear(LIMITS)
            raise ArithmeticError("the user's error")
        return grad * float(LIMITS.sum()), None


def test_an_error_after_the_write(engine: mg.Engine) -> None:
    x = mg.ones(SMALL, requires_grad=True)
    for _ in range(3):  # on both workers
        with pytest.raises(ArithmeticError, match="the user's error"):
            WritesAndRaises.apply(x, True).sum().backward()
        assert LIMITS.tolist() == [1.0, 2.0]
        x.grad = None
        WritesAndRaises.apply(x, False).sum().backward()
        assert x.grad.tolist() == [3.0] * SMALL


def test_scipy_told_to_overwrite(engine: mg.Engine) -> None:
    linalg = pytest.importorskip("scipy.linalg")
    factors = linalg.lu_factor(np.array([[4.0, 1.0], [1.0, 3.0]]))
    right = np.array([1.0, 2.0])

    class Solves(Writes):
        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> Any:
            return grad * float(linalg.lu_solve(factors, right, overwrite_b=True).sum())

    x = mg.ones(SMALL, requires_grad=True)
    with pytest.raises(RuntimeError, match="reads the closure variable `right`"):
        Solves.apply(x).sum().backward()
    assert right.tolist() == [1.0, 2.0]


def test_scipy_told_to_overwrite_a_saved_array(own_engine: mg.Engine) -> None:
    """Without a promise the backward runs again in the client: as ``local`` has it."""
    linalg = pytest.importorskip("scipy.linalg")

    class Scales(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> Any:
            ctx.save_for_backward(x)
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return grad * mg.tensor(linalg.blas.dscal(2.0, x.numpy()).copy())

    x = mg.ones(LARGE, dtype=mg.float64, requires_grad=True)
    with pytest.warns(mg.errors.PerformanceWarning, match="changes memory"):
        Scales.apply(x * 3).sum().backward()
    assert x.grad.tolist() == [18.0] * LARGE
    assert own_engine.statistics().restarts == 1
