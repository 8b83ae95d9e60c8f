"""The NumPy namespace: where large results are placed, and that their bits do not depend on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cpu import cpu_windows
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from tests.torch_outcomes import Of

SMALL, LARGE = (8, 8), (128, 128)
GEOMETRY = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


class Placement:
    """Hands out arrays and remembers them."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.arrays.append(np.empty(shape, dtype))
        return self.arrays[-1]

    def holds(self, array: np.ndarray) -> bool:
        return any(np.may_share_memory(array, placed) for placed in self.arrays)


def draw(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


OPERATIONS = {
    "add": lambda xp, x: xp.add(x, x),
    "multiply by a scalar": lambda xp, x: xp.multiply(x, 2.0),
    "outer product": lambda xp, x: xp.multiply(x[:1], x[:, :1]),
    "transposed": lambda xp, x: xp.add(x.T, 1.0),
    "exp": lambda xp, x: xp.exp(x),
    "sigmoid": lambda xp, x: xp.sigmoid(x),
    "where": lambda xp, x: xp.where(x > 0, x, x * 2),
    "where zero": lambda xp, x: xp.where(x > 0, 0.0, x),
    "sum": lambda xp, x: xp.sum(np.stack([x, x, x]), 0),
    "matmul": lambda xp, x: xp.matmul(x, x),
    "matmul with its transpose": lambda xp, x: xp.matmul(x, x.T),
    "concatenate": lambda xp, x: xp.concatenate([x, x], 1),
    "stack": lambda xp, x: xp.stack([x, x], 0),
    "astype": lambda xp, x: xp.astype(x, np.float64),
    "flip": lambda xp, x: xp.flip(x, 0),
    "cumsum": lambda xp, x: xp.cumsum(x, 1),
    "reshape of a transpose": lambda xp, x: xp.reshape(x.T, (-1,)),
    "scatter": lambda xp, x: xp.scatter_index(x, (slice(None),), (), x.shape),
    "conv2d": lambda xp, x: xp.conv2d(x[None, None], np.ones((1, 1, 3, 3), x.dtype), **GEOMETRY),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_large_results_are_placed_contiguously(name: str) -> None:
    placement = Placement()
    result = OPERATIONS[name](CpuBackend(placement), draw(*LARGE))
    assert placement.holds(result)
    assert result.flags.c_contiguous


@pytest.mark.parametrize("name", OPERATIONS)
def test_placement_does_not_change_values(name: str) -> None:
    x = draw(*LARGE)
    placed = OPERATIONS[name](CpuBackend(Placement()), x)
    plain = OPERATIONS[name](CpuBackend(np.empty), x.copy())
    assert placed.tobytes() == plain.tobytes()
    assert placed.dtype == plain.dtype


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n != "conv2d" and n != "sigmoid"])
def test_small_results_go_the_plain_way(name: str) -> None:
    placement = Placement()
    result = OPERATIONS[name](CpuBackend(placement), draw(*SMALL))
    assert not placement.holds(result)


def test_0d_results_are_arrays() -> None:
    xp = CpuBackend(np.empty)
    x = np.asarray(2.0)
    for result in (xp.add(x, x), xp.exp(x), xp.sum(np.ones(3)), xp.getitem(np.ones(3), (0,), ())):
        assert type(result) is np.ndarray
        assert result.shape == ()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_where_chooses_every_bit_pattern(dtype: Any) -> None:
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5], dtype)
    a = np.resize(special, LARGE)
    b = np.resize(special[::-1], LARGE)
    mask = np.random.default_rng(0).random(LARGE) > 0.5
    for first, second in ((a, b), (a, 0.0), (2.5, b), (0.0, b), (a[:1], b[:, :1])):
        ours = CpuBackend(np.empty).where(mask, first, second)
        assert ours.tobytes() == np.where(mask, first, second).astype(dtype).tobytes()


def test_matmul_is_the_same_whether_or_not_operands_share_memory() -> None:
    xp, x = CpuBackend(np.empty), draw(*LARGE)
    assert xp.matmul(x.T, x).tobytes() == xp.matmul(x.T, x.copy()).tobytes()


def test_a_product_with_a_vector_does_not_warn() -> None:
    # On CPUs with AVX-512 OpenBLAS tells of invalid values where there are none. Warnings are
    # errors here: a value that is invalid shows everywhere that none is told.
    xp = CpuBackend(np.empty)
    row, matrix = np.array([[np.inf, 0, 1, 1, 1]], np.float32), np.zeros((5, 3), np.float32)
    for a, b in ((row, matrix), (matrix.T, row.T), (row[0], matrix), (row[None], matrix)):
        assert np.isnan(xp.matmul(a, b)).any()
    for _ in range(4):  # from the second on its source is compiled
        leaf = mg.tensor(row, requires_grad=True)
        (leaf @ mg.tensor([[math.inf, -math.inf, 1]] * 5)).sum().backward()
        assert np.isnan(leaf.grad.numpy()).all()


def test_sum_to_reverses_broadcasting() -> None:
    xp = CpuBackend(np.empty)
    for shape in ((), (4,), (3, 1), (1, 1, 4), (2, 3, 4)):
        wide = np.broadcast_to(np.ones(shape), (2, 3, 4))
        assert (xp.sum_to(wide, shape) == 24 / np.prod(shape, dtype=int)).all()
        assert xp.sum_to(wide, shape).shape == shape


def test_scatter_along_axis_counts_negative_indices_from_the_end_of_their_own_line() -> None:
    xp = CpuBackend(np.empty)
    x, indices = np.ones((2, 1)), np.array([[-1], [0]])
    assert xp.scatter_along_axis(x, indices, 1, 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_scatter_along_axis_adds_repeated_indices() -> None:
    xp = CpuBackend(np.empty)
    x = draw(4, 3, 2, dtype=np.float64)
    indices = np.random.default_rng(1).integers(0, 5, x.shape)
    for axis in range(3):
        expected = np.zeros([5 if d == axis else n for d, n in enumerate(x.shape)])
        for place in np.ndindex(x.shape):
            target = list(place)
            target[axis] = indices[place]
            expected[tuple(target)] += x[place]
        np.testing.assert_allclose(xp.scatter_along_axis(x, indices, axis, 5), expected)


def test_max_pool_ties_and_padding_as_in_pytorch(of_torch: Of) -> None:
    x = np.random.default_rng(2).integers(-2, 2, (2, 2, 7, 6)).astype(np.float32)
    x[0, 0] = -np.inf
    kernel, stride, padding, dilation = (3, 2), (2, 1), (1, 1), (2, 1)

    def on_torch(torch: Any) -> list[np.ndarray]:
        found = torch.nn.functional.max_pool2d(
            torch.from_numpy(x), kernel, stride, padding, dilation, return_indices=True
        )
        return [tensor.numpy() for tensor in found]

    values, indices = CpuBackend(np.empty).max_pool2d(
        x, kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )
    for oracle, (their_values, their_indices) in of_torch(on_torch):
        assert (values == their_values).all(), oracle
        assert (indices == their_indices).all(), oracle


def test_max_pool_of_windows_with_many_elements() -> None:
    x = draw(2, 3, 36, 37)
    options = {"kernel": (17, 18), "stride": (17, 18), "padding": (0, 0), "dilation": (1, 1)}
    values, positions = CpuBackend(np.empty).max_pool2d(x, **options)
    for at in np.ndindex(*values.shape):
        window = x[at[0], at[1], at[2] * 17 :, at[3] * 18 :][:17, :18]
        assert values[at] == window.max()
        assert x[at[0], at[1]].ravel()[positions[at]] == values[at]


def test_max_pool_of_a_few_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(5, 3, 9, 8)
    x[1, 0, 4, 4] = x[3, 2, 0, 0] = np.nan
    options = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    at_once = CpuBackend(np.empty).max_pool2d(x, **options)
    monkeypatch.setattr(cpu_windows, "COPIED_BYTES", 2 * at_once[0][0].nbytes * 6)
    for found, expected in zip(CpuBackend(np.empty).max_pool2d(x, **options), at_once, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_sum_by_channel_has_the_same_bits_as_source() -> None:
    weight, bias = draw(5, 3, 7, 9), mg.zeros(3, 1, 1, requires_grad=True)
    expected = CpuBackend(np.empty).sum(weight, (0, 2, 3))
    np.testing.assert_allclose(expected, weight.astype(np.float64).sum((0, 2, 3)), rtol=1e-5)
    with mg.Engine("local"):
        for _ in range(4):
            bias.grad = None
            ((mg.tensor(draw(5, 3, 7, 9)) + bias) * mg.tensor(weight)).sum().backward()
            assert bias.grad is not None
            assert bias.grad.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 5e-16), (np.float32, 3e-7)])
def test_erf_is_exact_to_the_last_digits(dtype: Any, tolerance: float) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), [0.0, -0.0, np.inf, -np.inf, 1e-300, 1.0]])
    ours = CpuBackend(np.empty).erf(x.astype(dtype))
    exact = np.array([math.erf(value) for value in x.astype(dtype)])
    assert ours.dtype == dtype
    assert np.abs(ours - exact).max() <= tolerance
    assert np.isnan(CpuBackend(np.empty).erf(np.array([np.nan], dtype))).all()


def test_stable_where_naive_forms_overflow() -> None:
    xp = CpuBackend(np.empty)
    x = np.array([-1000.0, 0.0, 1000.0])
    with np.errstate(all="raise"):
        assert xp.sigmoid(x).tolist() == [0.0, 0.5, 1.0]


def test_a_view_is_followed_and_written_to_in_any_layout() -> None:
    xp = CpuBackend(np.empty)
    steps = (("getitem", (slice(None), slice(0, 5, 2))), ("reshape", (12,)), ("getitem", (3,)))
    for x in (np.zeros((4, 5)), np.zeros((4, 6))[:, :5], np.zeros((5, 4)).T):
        expected = np.zeros((4, 5))
        expected[1, 0] = 7.0
        np.testing.assert_array_equal(xp.put_view(x, 7.0, steps), expected)
        assert xp.take_view(expected, steps) == 7.0
        assert not x.any()


def test_only_views_are_steps_of_a_view() -> None:
    xp = CpuBackend(np.empty)
    with pytest.raises(ValueError, match="'save' is not a step of a view"):
        xp.take_view(np.zeros(2), (("save", "/tmp/file"),))
