"""Formulas on pieces: the numbers of whole arrays, and the same bits wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.arrays.cpu import blockwise
from mpgrad.arrays.cpu.cpu_backend import CpuBackend
from mpgrad.ops.neural import activation, group_norm, normalization
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

XP = CpuBackend(np.empty)
F = mg.nn.functional
SLOPES = {
    "gelu": (activation._gelu_slope,),
    "gelu tanh": (activation._gelu_tanh_slope,),
    "silu": (activation._silu_slope,),
    "leaky_relu": (activation._leaky_relu_slope, 0.2),
    "elu": (activation._elu_slope, 1.5),
    "softplus": (activation._softplus_slope, 2.0, 1.0),
}
#: Several pieces, the last of them shorter; and one that is just not whole.
SHAPES = ((131, 1027), (17, 7, 1129), (64 * 1024 // 4,))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(blockwise, "PIECE_BYTES", 256 * 1024)
    blockwise._planned.cache_clear()
    yield
    blockwise._planned.cache_clear()


def draw(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def in_pieces(formula: Callable[..., Any], *operands: Any, axes: Any = None) -> Any:
    return blockwise.blockwise(formula, operands, axes, np.empty)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SLOPES)
def test_elementwise_formulas_give_what_they_give_on_whole_arrays(
    name: str, shape: tuple[int, ...], dtype: Any
) -> None:
    formula, *numbers = SLOPES[name]
    grad, x = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    pieces = in_pieces(formula, grad, x, *numbers)
    if name == "gelu" and dtype is np.float64:
        assert pieces is NotImplemented
        return
    tolerance = 2e-6 if dtype is np.float32 else 1e-14
    whole = formula(XP, grad, x, *numbers)
    assert pieces.dtype == dtype
    assert pieces.flags.c_contiguous
    np.testing.assert_allclose(pieces, whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(131, 1027), (33, 129, 65), (3, 70, 50, 60)], ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (-1,), (0, 2)], ids=str)
@pytest.mark.parametrize(
    "formula",
    [activation._softmax_values, activation._log_softmax_slope, activation._softmax_slope],
    ids=lambda formula: formula.__name__,
)
def test_sums_within_a_piece(formula: Any, axes: Any, shape: tuple[int, ...]) -> None:
    if axes == (0, 2) and len(shape) == 2:
        axes = (0, 1)
    axes = tuple(axis % len(shape) for axis in axes)
    operands = [draw(*shape, seed=at) for at in range(formula.__code__.co_argcount - 2)]
    pieces = in_pieces(formula, *operands, axes=axes)
    if pieces is not NotImplemented:
        whole = formula(XP, axes, *operands)
        assert pieces.shape == whole.shape
        np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-4)
    else:
        assert len(shape) == 2, "the others can be cut"
        assert axes in ((0, 1), (0,)), "as above"


@pytest.mark.parametrize("formula", [normalization._batch_values, normalization._layer_slopes])
def test_sums_over_all_pieces(formula: Any) -> None:
    grad, x, weight = draw(517, 700), draw(517, 700, seed=1), draw(1, 700, seed=2)
    operands = (x, weight, weight, 1e-5, 1 / 700)
    if formula is normalization._layer_slopes:
        operands = (grad, x, weight, 1e-5, 1 / 700)
    for pieces, whole in zip(
        in_pieces(formula, *operands, axes=(1,)), formula(XP, (1,), *operands), strict=True
    ):
        assert pieces.shape == whole.shape
        np.testing.assert_allclose(pieces, whole, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(40, 90, 5, 7), (9, 300, 40), (7, 300, 40), (3, 200, 700), (300, 90, 1)], ids=str
)
def test_sums_by_channel(shape: tuple[int, ...], dtype: Any) -> None:
    """Numbers of channels beside rows of any length, among them short ones with many images."""
    axes, channels = (0, *range(2, len(shape))), (1, shape[1], *(1,) * (len(shape) - 2))
    grad, x = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1) + dtype(5)
    weight, bias = draw(*channels, dtype=dtype, seed=2), draw(*channels, dtype=dtype, seed=3)
    share = shape[1] / x.size
    tolerance = 2e-5 if dtype is np.float32 else 1e-13
    for formula, operands in (
        (normalization._batch_values, (x, weight, bias)),
        (normalization._batch_slopes, (grad, x, weight)),
        (normalization._batch_slopes, (grad, x, None)),
    ):
        pieces = in_pieces(formula, *operands, 1e-5, share, axes=axes)
        wide = [None if array is None else array.astype(np.float64) for array in operands]
        whole = formula(XP, axes, *wide, 1e-5, share)
        for one, exact in zip(pieces, whole, strict=True):
            assert one.dtype == dtype
            scale = np.abs(exact).max()
            np.testing.assert_allclose(one, exact, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("shape", [(40, 3, 5, 60), (7, 4, 2, 3000), (90, 1, 9, 70)], ids=str)
def test_sums_by_group_and_by_channel(shape: tuple[int, ...]) -> None:
    """(batch, groups, channels of a group, pixels): an operand that extends over the middle."""
    grad, x, weight = draw(*shape), draw(*shape, seed=1), draw(1, *shape[1:3], 1, seed=2)
    for formula, operands in (
        (normalization.layer_values, (x, weight, weight)),
        (group_norm._group_slopes, (grad, x, weight)),
        (normalization.layer_input_slope, (grad, x, None)),
    ):
        given = (*operands, 1e-5, 1 / (shape[2] * shape[3]))
        pieces = in_pieces(formula, *given, axes=(2, 3))
        wide = [v.astype(np.float64) if isinstance(v, np.ndarray) else v for v in given]
        whole = formula(XP, (2, 3), *wide)
        several = isinstance(whole, tuple)
        for one, exact in zip(
            pieces if several else [pieces], whole if several else [whole], strict=True
        ):
            assert one.shape == exact.shape
            np.testing.assert_allclose(one, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


def test_missing_operands_have_programs_of_their_own() -> None:
    x, weight = draw(500, 700), draw(1, 700, seed=1)
    for given in ((weight, None), (None, weight), (None, None), (weight, weight)):
        operands = (x, *given, 1e-5, 1 / 700)
        pieces = in_pieces(normalization._batch_values, *operands, axes=(1,))
        whole = normalization._batch_values(XP, (1,), *operands)
        np.testing.assert_allclose(pieces[0], whole[0], rtol=2e-4, atol=2e-4)


def test_what_cannot_be_cut_is_left_to_whole_arrays() -> None:
    x = draw(300, 400)
    slope = activation._silu_slope
    assert in_pieces(slope, x, x.T.copy().T) is NotImplemented, "not in order"
    assert in_pieces(slope, x, x.astype(np.float64)) is NotImplemented, "several dtypes"
    assert in_pieces(slope, x.astype(np.float16), x.astype(np.float16)) is NotImplemented
    assert in_pieces(slope, x.astype(complex), x.astype(complex)) is NotImplemented
    assert in_pieces(lambda xp, a: xp.cumsum(a, 0), x) is NotImplemented, "not element by element"
    assert in_pieces(lambda xp, a: xp.exp(a), x) is NotImplemented, "a single function"
    assert in_pieces(lambda xp, a: a, x) is NotImplemented, "nothing is computed"


def test_a_sum_over_all_pieces_may_not_be_used_before_it_is_complete() -> None:
    def formula(xp: Any, axes: Any, x: Any) -> Any:
        return xp.subtract(x, xp.exp(xp.sum(x, (0,), True)))

    assert in_pieces(formula, draw(500, 700), axes=(1,)) is NotImplemented


def test_choices_know_no_infinity() -> None:
    def formula(xp: Any, a: Any, b: Any) -> Any:
        zeroed = xp.where(xp.greater(a, 0), b, 0.0)
        return xp.where(xp.less(a, -1), 5.0, zeroed)

    a = draw(200, 300)
    b = np.full_like(a, np.inf)
    b[::2] = np.nan
    np.testing.assert_array_equal(
        in_pieces(formula, a, b), np.where(a < -1, np.float32(5), np.where(a > 0, b, 0))
    )


def test_the_bits_do_not_depend_on_what_ran_before() -> None:
    """Buffers are used again; what an earlier formula left in them must not show."""
    grad, x = draw(300, 700), draw(300, 700, seed=1)
    first = [in_pieces(f, grad, x, *numbers) for f, *numbers in SLOPES.values()]
    in_pieces(activation._softmax_values, np.full((900, 900), np.nan, np.float32), axes=(1,))
    again = [in_pieces(f, grad, x, *numbers) for f, *numbers in reversed(SLOPES.values())]
    assert [a.tobytes() for a in first] == [a.tobytes() for a in reversed(again)]


def test_a_scratch_memory_keeps_arrays_for_so_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BUFFERS_MAX", 3)
    monkeypatch.setattr(blockwise, "_idle_scratch", [])
    whole = activation._silu_slope
    for rows in (*range(131, 138), 131):
        grad, x = draw(rows, 1027), draw(rows, 1027, seed=1)
        pieces = in_pieces(whole, grad, x)
        np.testing.assert_allclose(pieces, whole(XP, grad, x), rtol=2e-6, atol=2e-6)
        (scratch,) = blockwise._idle_scratch
        assert 0 < len(scratch._made) <= 3


def test_numpys_buffer_size_is_put_back() -> None:
    before = np.getbufsize()
    in_pieces(activation._softmax_values, draw(300, 700), axes=(1,))
    assert np.getbufsize() == before


LAYERS: dict[str, Callable[[Any, Any], Any]] = {
    "gelu": lambda f, x: f.gelu(x),
    "gelu tanh": lambda f, x: f.gelu(x, approximate="tanh"),
    "silu": lambda f, x: f.silu(x),
    "elu": lambda f, x: f.elu(x, 1.5),
    "softplus": lambda f, x: f.softplus(x, 2.0, 1.0),
    "leaky_relu": lambda f, x: f.leaky_relu(x, 0.2),
    "logsigmoid": lambda f, x: f.logsigmoid(x),
    "relu": lambda f, x: f.relu(x),
    "softmax": lambda f, x: f.softmax(x, 1),
    "log_softmax": lambda f, x: f.log_softmax(x, 3),
    "layer_norm": lambda f, x: f.layer_norm(x, x.shape[2:]),
    "batch_norm": lambda f, x: f.batch_norm(x, None, None, None, None, True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_large_layers_match_pytorch(name: str, of_torch: Of) -> None:
    values, seed = draw(4, 16, 40, 50), draw(4, 16, 40, 50, seed=1)

    def run(lib: Any) -> list[Any]:
        x = lib.tensor(values, requires_grad=True)
        out = LAYERS[name](lib.nn.functional, x)
        out.backward(lib.tensor(seed))
        return [seen(tensor, exact=False) for tensor in (out, x.grad)]

    out, grad = run(mg)
    for oracle, (expected, wanted) in of_torch(run):
        compare(out, expected, 1e-5, 2e-6, oracle)
        compare(grad, wanted, 1e-4, 2e-5, oracle)
