"""What would cost a gradient, or digits, without a word."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import joblib
import numpy as np
import pytest

import mpgrad as mg


class Column:
    """As pandas has them: no sequence of lists, but with an array."""

    def __init__(self, values: list[Any], dtype: str) -> None:
        self._array = np.array(values, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._array, dtype)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, at: int) -> Any:
        return self._array[at]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "complex128"])
def test_columns_keep_their_dtype(dtype: str) -> None:
    column = Column([1.0, 1 / 3], dtype)
    for made in (mg.tensor(column), mg.as_tensor(column), mg.tensor([column, column])):
        assert made.dtype == getattr(mg, dtype)
    assert mg.tensor(column).numpy().tolist() == column._array.tolist()
    assert mg.tensor(column, dtype=mg.complex64).dtype == mg.complex64


def test_columns_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    assert mg.tensor(pandas.Series([1.0, 2.0])).dtype == mg.float64
    assert mg.tensor(pandas.DataFrame({"a": [1.0, 2.0]})).dtype == mg.float64


class Sums(mg.Function):
    """Gives what ``give`` makes of the sum."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, give: Any) -> Any:
        return give(x.detach().sum())

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad.expand(2), None


def test_a_number_of_python_from_forward() -> None:
    x = mg.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match=r"the forward of Sums has returned 2\.0, a number"):
        assert Sums.apply(x, float) == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sums.apply(x.detach(), float) == 2.0  # nothing is lost
        assert Sums.apply(x, lambda s: s.numpy()[()]).requires_grad
        assert Sums.apply(x, lambda s: (s, 3.0))[1] == 3.0
        assert Sums.apply(x, lambda s: None) is None


def test_an_engine_names_the_argument_that_was_meant() -> None:
    for given, meant in (("workers", "cpu_workers"), ("gpu", "gpus"), ("threads", "blas_threads")):
        with pytest.raises(TypeError, match=f"'{given}'. Did you mean '{meant}'"):
            mg.Engine(**{given: 4})
    with pytest.raises(TypeError, match="'xyz'; there are mode, cpu_workers"):
        mg.Engine(xyz=4)  # type: ignore[call-arg]


def doubled(x: mg.Tensor) -> mg.Tensor:
    return x * 2


@pytest.mark.process
def test_results_that_leave_their_graph_behind() -> None:
    """joblib runs the call in another process, which has the graph."""
    x = mg.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        joblib.Parallel(n_jobs=2)(joblib.delayed(doubled)(x) for _ in range(2))
    joblib.externals.loky.get_reusable_executor().shutdown(wait=True)
    for y in joblib.Parallel(n_jobs=2, backend="threading")(
        joblib.delayed(doubled)(x) for _ in range(2)
    ):
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 4.0]


def test_functions_made_in_a_loop_are_freed() -> None:
    """With what their closures hold, also once their costs have been learned."""
    tables: list[weakref.ref[Any]] = []

    def make() -> type[mg.Function]:
        table = np.ones(1000)
        tables.append(weakref.ref(table))

        class Made(mg.Function):
            @staticmethod
            def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
                return x.detach() * 2

            @staticmethod
            def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
                return grad * float(table[0])

        return Made

    with mg.Engine("local"):
        for _ in range(10):
            made = make()
            for _ in range(4):
                made.apply(mg.ones(1, requires_grad=True)).sum().backward()
    del made
    gc.collect()
    assert [ref() for ref in tables] == [None] * 10
