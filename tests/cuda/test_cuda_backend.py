"""The CuPy namespace: operators and their formulas give on a fake GPU what they give on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mpgrad.arrays.cuda import cuda_windows
from mpgrad.arrays.cuda.cuda_backend import LINES_MIN, CudaBackend
from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.recording.dispatch.operator_call import cpu
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import Node
from tests.cuda.fake_driver.driver import FakeCudaDriver
from tests.ops.cases import CASES, Case
from tests.ops.test_namespace import used_by_operators
from tests.ops.test_operators import cotangent_for, run


@pytest.fixture
def xp(driver: CudaDriver) -> CudaBackend:
    return CudaBackend(driver.namespace, driver.special)


def on_device(xp: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # Not `asarray`: a saved array keeps its strides, as it does on its way to a worker.
        return xp.arrays.asarray(value)
    if isinstance(value, tuple):
        return tuple(on_device(xp, part) for part in value)
    return value


def dense(value: Any) -> Any:
    """Arrays as ``on_device`` copies them, without gaps: BLAS may round strided ones otherwise."""
    if isinstance(value, dict):
        return {name: dense(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(dense, value))
    return np.array(value, order="K") if isinstance(value, np.ndarray) else value


def nodes_behind(out: Any) -> Iterator[OperatorNode]:
    """The operators' Nodes of a graph, each once."""
    seen: set[Node] = set()
    pending = [out.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [edge[0] for edge in node.next_edges if edge is not None]
        if isinstance(node, OperatorNode):
            yield node


def assert_same(
    ours: Any, expected: np.ndarray, driver: CudaDriver, *, is_exact: bool = True
) -> None:
    found = driver.namespace.asnumpy(ours)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if driver.name == "fake" and is_exact:
        assert found.tobytes() == expected.tobytes()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_the_backend_defines_what_operators_use() -> None:
    assert {name for name in used_by_operators() if not hasattr(CudaBackend, name)} == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_formulas_give_the_same(case: Case, xp: CudaBackend, driver: CudaDriver) -> None:
    out, _ = run(case, case.arrays())
    if out.grad_fn is None:
        return
    for node in nodes_behind(out):
        grads = [
            np.asarray(cotangent_for(np.empty(meta.shape, meta.dtype)), meta.dtype)
            for meta in node.input_metadata
        ]
        needs = [info is not None for info in node.input_info]
        saved = {**node.plain, **node.saved_arrays()}
        on_gpu = {name: on_device(xp, value) for name, value in saved.items()}
        found = node.operator.backward(xp, [on_device(xp, g) for g in grads], on_gpu, needs)
        expected = node.operator.backward(cpu, grads, dense(saved), needs)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                # Each backend adds up convolutions, and sums by channel, in an order of its own.
                is_exact = not node.operator.name.startswith(("conv2d", "add"))
                is_exact = is_exact and not case.name.startswith("batch_norm")
                assert_same(ours, theirs, driver, is_exact=is_exact)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("inner", [1, LINES_MIN])
def test_repeated_indices_add_up_in_order(
    xp: CudaBackend, driver: CudaDriver, axis: int, inner: int
) -> None:
    rng = np.random.default_rng(axis)
    shape = [3, 4, inner]
    values = rng.normal(size=shape).astype(np.float32)
    indices = rng.integers(-5, 5, shape)
    found = xp.scatter_along_axis(on_device(xp, values), on_device(xp, indices), axis, 5)
    assert_same(found, cpu.scatter_along_axis(values, indices, axis, 5), driver)


def test_rows_of_a_table_add_up_in_order(xp: CudaBackend, driver: CudaDriver) -> None:
    rng = np.random.default_rng(0)
    values, rows = rng.normal(size=(50, 6)).astype(np.float32), rng.integers(-7, 7, 50)
    found = xp.scatter_index(on_device(xp, values), ("index",), (on_device(xp, rows),), (7, 6))
    assert_same(found, cpu.scatter_index(values, ("index",), (rows,), (7, 6)), driver)


@pytest.mark.parametrize("padding", [(0, 0), (1, 0)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_windows(xp: CudaBackend, driver: CudaDriver, padding: Any, stride: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 4, 7, 6))
    x[0, 0, 2, 2] = np.nan
    geometry = {"kernel": (3, 2), "stride": stride, "padding": padding}
    found = xp.max_pool2d(on_device(xp, x), dilation=(1, 2), **geometry)
    for ours, theirs in zip(found, cpu.max_pool2d(x, dilation=(1, 2), **geometry), strict=True):
        assert_same(ours, theirs, driver)
    for counts in (True, False):
        given = {**geometry, "count_include_pad": counts}
        mean = cpu.avg_pool2d(x, **given)
        assert_same(xp.avg_pool2d(on_device(xp, x), **given), mean, driver)
        given["input_shape"] = x.shape
        assert_same(
            xp.avg_pool2d_input_grad(on_device(xp, mean), **given),
            cpu.avg_pool2d_input_grad(mean, **given),
            driver,
        )


def test_an_array_of_the_host_is_refused() -> None:
    driver = FakeCudaDriver(1)
    xp = CudaBackend(driver.namespace, driver.special)
    with pytest.raises(TypeError, match="Unsupported type"):
        xp.add(xp.arrays.ones(2), np.ones(2))
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(xp.arrays.ones(2))
    assert cuda_windows.conv2d is CudaBackend.conv2d
