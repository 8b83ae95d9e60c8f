"""Formulas on a GPU: few kernels, the values of the functions one after another."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from mpgrad.arrays.cuda.cuda_backend import SPLIT_SUM_MIN, CudaBackend, _last_and_first
from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.ops.elementwise import transcendental  # noqa: F401
from mpgrad.ops.neural import activation, group_norm, normalization
from mpgrad.recording.graph.registry import OPERATORS
from tests.cuda.fake_driver.driver import FakeCudaDriver

ELEMENTWISE = sorted(name for name, operator in OPERATORS.items() if operator.elementwise)
ATTRIBUTES = {"alpha": 0.5, "negative_slope": 0.1, "beta": 2.0, "threshold": 20.0,
              "low": 0.2, "high": 0.8}  # fmt: skip

#: A formula with sums or maxima over axes, and how many arrays it takes.
REDUCING = {
    "softmax": (activation._softmax_values, 1, (), (2,)),
    "softmax slope": (activation._softmax_slope, 2, (), (2,)),
    "log softmax slope": (activation._log_softmax_slope, 2, (), (1,)),
    "batch values": (normalization._batch_values, 1, (None, None, 1e-5, 1 / 12), (0, 2)),
    "layer values": (normalization.layer_values, 1, (None, None, 1e-5, 1 / 4), (2,)),
    "layer slopes": (normalization._layer_slopes, 2, (None, 1e-5, 1 / 4), (2,)),
    "batch slopes": (normalization._batch_slopes, 2, (None, 1e-5, 1 / 12), (0, 2)),
    "group slopes": (group_norm._group_slopes, 2, (None, 1e-5, 1 / 4), (2, 3)),
}


@pytest.fixture
def xp(driver: CudaDriver) -> CudaBackend:
    return CudaBackend(driver.namespace, driver.special)


def drawn(xp: CudaBackend, count: int, dtype: str, *shape: int) -> list[Any]:
    values = np.random.default_rng(3).uniform(0.1, 0.9, (count, *shape)).astype(dtype)
    return [xp.arrays.asarray(each) for each in values]


def assert_same(found: Any, expected: Any) -> None:
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        rtol = 4e-3 if ours.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(ours.get(), theirs.get(), rtol, rtol)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_derivative_is_one_kernel(name: str, dtype: str, xp: CudaBackend) -> None:
    formula, wanted = OPERATORS[name]._formulas["input"]
    arrays = iter(drawn(xp, 2, dtype, 3, 5))
    operands = [ATTRIBUTES[each] if each in ATTRIBUTES else next(arrays) for each in wanted]
    with np.errstate(invalid="ignore"):  # arccosh
        assert_same(xp.blockwise(formula, *operands), formula(xp, *operands))
    (kernel,) = xp._fusion._plan(formula, None, (False,) * len(operands))._kernels
    assert kernel._can_fuse


@pytest.mark.parametrize("case", REDUCING)
def test_sums_and_maxima_stand_between_kernels(case: str, xp: CudaBackend) -> None:
    formula, count, rest, axes = REDUCING[case]
    shape = (3, 2, 2, 2) if 3 in axes else (3, 2, 4)
    operands = (*drawn(xp, count, "f4", *shape), *rest)
    assert_same(xp.blockwise(formula, *operands, axes=axes), formula(xp, axes, *operands))
    plan = xp._fusion._plan(formula, axes, tuple(operand is None for operand in operands))
    kernels = [*plan._kernels, *(kernel for _, kernel in plan._reductions)]
    assert all(kernel._can_fuse for kernel in kernels)


def test_arrays_without_elements_and_without_dimensions(xp: CudaBackend) -> None:
    for shape in ((0, 3), ()):
        (x,) = drawn(xp, 1, "f4", *shape)
        assert_same(xp.blockwise(activation._gelu_values, x), activation._gelu_values(xp, x))


def test_a_formula_holds_no_array_until_garbage_is_collected(xp: CudaBackend) -> None:
    """A cycle would, and with it memory that others want back."""
    (x,) = drawn(xp, 1, "f4", 3, 4)
    xp.blockwise(activation._softmax_values, x, axes=(1,))
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(x)
        xp.blockwise(activation._softmax_values, x, axes=(1,))
        assert sys.getrefcount(x) == before
    finally:
        gc.enable()


def test_what_cannot_be_fused_runs_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeCudaDriver(1)

    def refuse(function: Any) -> Any:
        def fused(*arrays: Any) -> Any:
            raise NotImplementedError("not in a kernel")

        return fused

    monkeypatch.setattr(driver.namespace, "fuse", lambda kernel_name: refuse, raising=False)
    xp = CudaBackend(driver.namespace, driver.special)
    (x,) = drawn(xp, 1, "f4", 3, 4)
    for _ in range(2):
        assert_same(xp.blockwise(activation._silu_values, x), activation._silu_values(xp, x))


def test_what_the_functions_refuse_is_no_reason_not_to_fuse_others(xp: CudaBackend) -> None:
    def formula(xp: Any, x: Any) -> Any:
        return xp.maximum(xp.floor(x), 0)

    with pytest.raises(TypeError):
        xp.blockwise(formula, xp.arrays.ones(3, "c8"))
    assert xp.blockwise(formula, xp.arrays.ones(3, "f4")).get().tolist() == [1, 1, 1]
    assert xp._fusion._plan(formula, None, (False,))._kernels[0]._can_fuse


@pytest.mark.parametrize(
    ("axis", "last", "first"),
    [
        ((0, 2, 3), (2, 3), (0,)),
        ((-1, 0), (3,), (0,)),
        ((1, 2), (), (1, 2)),
        ((0, 1, 2, 3), (0, 1, 2, 3), ()),
        (2, (), ()),
        (None, (), ()),
    ],
)
def test_which_axes_are_summed_first(axis: Any, last: Any, first: Any) -> None:
    assert _last_and_first(axis, 4) == (last, first)


@pytest.mark.parametrize("keepdims", [True, False])
def test_a_sum_in_two_steps(keepdims: bool, xp: CudaBackend) -> None:
    (x,) = drawn(xp, 1, "f8", 8, 3, SPLIT_SUM_MIN // 16)
    found, expected = xp.sum(x, (0, 2), keepdims), xp.arrays.sum(x, (0, 2), keepdims=keepdims)
    assert_same(found, expected)
    assert found.base is None or found.base.nbytes == found.nbytes
