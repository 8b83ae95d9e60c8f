"""What the operator table cannot show: orders, ties, places, closeness, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.nn import functional
from tests.torch_outcomes import Of

VALUES = np.array([[3.0, 1.0, 3.0, np.nan], [0.0, -2.0, 0.0, 5.0]])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sorting_is_stable_and_puts_nan_last(dim: int, descending: bool, of_torch: Of) -> None:
    def on_torch(torch: Any) -> list[np.ndarray]:
        found = torch.sort(torch.from_numpy(VALUES), dim=dim, descending=descending, stable=True)
        return [tensor.numpy() for tensor in found]

    ours = mg.sort(mg.tensor(VALUES), dim, descending)
    for oracle, (values, indices) in of_torch(on_torch):
        np.testing.assert_array_equal(ours.values.numpy(), values, oracle)
        np.testing.assert_array_equal(ours.indices.numpy(), indices, oracle)
    assert mg.equal(mg.argsort(mg.tensor(VALUES), dim, descending), ours.indices)


def test_a_0d_tensor_is_in_order() -> None:
    x = mg.tensor(2.0, requires_grad=True)
    for values, indices in (mg.sort(x), mg.topk(x, 1)):
        assert values.item() == 2.0
        assert not np.may_share_memory(values.detach().numpy(), x.detach().numpy())
        assert indices.item() == 0


def test_topk_takes_no_more_than_there_are() -> None:
    values, indices = mg.topk(mg.tensor([1.0, 4.0, 2.0]), 2)
    assert (values.tolist(), indices.tolist()) == ([4.0, 2.0], [1, 2])
    with pytest.raises(RuntimeError, match="selected index k out of range"):
        mg.topk(values, 3)


def test_nonzero(of_torch: Of) -> None:
    def places(lib: Any) -> list[Any]:
        arrays = (VALUES, np.zeros((2, 0)), np.float64(3.0), np.float64(0.0))
        found = [lib.nonzero(lib.tensor(array)) for array in arrays]
        return [[one.tolist(), list(one.shape)] for one in found]

    for oracle, theirs in of_torch(places):
        assert places(mg) == theirs, oracle
    rows, columns = mg.nonzero(mg.tensor(VALUES), as_tuple=True)
    assert (VALUES[rows.numpy(), columns.numpy()] != 0).all()


def test_closeness() -> None:
    a, b = mg.tensor([1.0, np.nan]), mg.tensor([1.0 + 1e-6, np.nan])
    assert mg.isclose(a, b).tolist() == [True, False]
    assert not mg.allclose(a, b)
    assert mg.allclose(a, b, equal_nan=True)
    assert mg.equal(a[:1], a[:1].clone())
    assert not mg.equal(a[:1], a)


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, float("inf")])
def test_the_gradient_of_a_norm_at_the_origin_is_zero(p: float) -> None:
    x = mg.zeros(3, requires_grad=True)
    mg.norm(x, p).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_the_norm_of_order_0_counts() -> None:
    assert mg.norm(mg.tensor([[0.0, 2.0], [-1.0, 3.0]]), 0, 1).tolist() == [1.0, 2.0]


def test_views_share_memory() -> None:
    x = mg.arange(12.0).reshape(3, 4)
    for view in (mg.narrow(x, 1, 1, 2), mg.select(x, 0, 1), mg.unbind(x)[2]):
        assert np.may_share_memory(view.numpy(), x.numpy())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.masked_fill(x, 1.0), "only supports boolean masks"),
        (lambda x: x.masked_fill(x > 0, x), "0-dimensional value tensor"),
        (lambda x: x.narrow(0, 1, 3), "exceeds dimension size"),
        (lambda x: x.diagonal(0, 1, 1), "dimensions cannot be identical"),
        (lambda x: mg.diag(x[None]), "1D or 2D"),
        (lambda x: x[0].tril(), "at least 2 dimensions"),
        (lambda x: x.roll((1, 2), 0), "must align"),
        (lambda x: functional.pad(x, (1,)), "Padding length"),
        (lambda x: mg.einsum("ij,jk->ik", x), "operands"),
        (lambda x: mg.einsum("ijk->i", x), "does not match"),
        (lambda x: mg.einsum("ij->ik", x), "output"),
        (lambda x: mg.einsum("ij,ij->", x, x[:, :2]), "broadcast"),
        (lambda x: mg.einsum("i1", x), "letters"),
        (lambda x: mg.mv(x[0], x), "vector"),
        (lambda x: mg.outer(x, x), "1-D"),
        (lambda x: mg.norm(x, "nuclear"), "unknown p"),
    ],
)
def test_misuse(function: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        function(mg.ones(3, 3))


def test_composed_in_place_forms_write_into_the_tensor() -> None:
    x = mg.ones(2, 3)
    view, memory = x[0], x.numpy()
    assert x.index_add_(0, mg.tensor([0]), mg.ones(1, 3)) is x
    assert view.tolist() == [2.0, 2.0, 2.0]
    assert np.may_share_memory(memory, x.numpy())
    assert x._version == 1
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        view.lerp_(x, 0.5)
    with pytest.raises(RuntimeError, match="can't be cast"):
        mg.ones(2, dtype=mg.int64).addcmul_(mg.ones(2), mg.ones(2))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.scatter(0, mg.tensor([0]), x), "same number of dimensions"),
        (lambda x: x.scatter(0, mg.tensor([[0]]), x.double()), "dtype"),
        (lambda x: x.masked_scatter(x > 0, x[0]), "at least 9 elements"),
        (lambda x: mg.tensordot(x, x[:2], 1), "contracted dimensions"),
        (lambda x: mg.meshgrid(x[0], indexing="ji"), "indexing"),
    ],
)
def test_misuse_of_what_puts_and_joins(function: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        function(mg.ones(3, 3))


def test_one_hot() -> None:
    indices = mg.tensor([[0, 2], [1, 1]])
    hot = functional.one_hot(indices)
    assert hot.shape == (2, 2, 3)
    assert hot.argmax(-1).tolist() == indices.tolist()
    assert hot.sum(-1).tolist() == [[1, 1], [1, 1]]
    assert functional.one_hot(indices, 5).shape == (2, 2, 5)
    with pytest.raises(RuntimeError, match="out of range"):
        functional.one_hot(indices, 2)
    with pytest.raises(RuntimeError, match="index tensors"):
        functional.one_hot(mg.ones(2))


def test_embedding_refuses_what_is_no_row() -> None:
    table = mg.ones(3, 2)
    for index in (3, -1):
        with pytest.raises(IndexError, match="out of range"):
            functional.embedding(mg.tensor([index]), table)
    with pytest.raises(RuntimeError, match="integer indices"):
        functional.embedding(mg.ones(2), table)


def test_a_list_of_indices_of_several_dimensions_is_a_tuple() -> None:
    """As in PyTorch, which says so with a warning; NumPy takes nested lists for one index."""
    x = mg.arange(25).view(5, 5)
    for key in ([[0, 4], [2, 2]], [slice(None), [1, 3]], [None, 0], [mg.tensor([0, 1]), ...]):
        with pytest.warns(UserWarning, match="non-tuple sequence"):
            found = x[key]
        assert found.tolist() == x[tuple(key)].tolist()
    assert x[[0, 1]].shape == (2, 5)
    assert x[[True, False, True, True, False]].shape == (3, 5)


@pytest.mark.parametrize("bins", [0, 1e30])
def test_a_number_of_bins_that_no_array_has_is_refused(bins: float) -> None:
    with pytest.raises(RuntimeError, match="bins must be > 0 and < 2"):
        mg.histogram(mg.ones(3), bins)
