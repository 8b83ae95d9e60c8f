"""Methods of Tensor that are no operators: conversions, printing, copies, in-place forms, NumPy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
import mpgrad.tensor_methods  # (completes Tensor)
from mpgrad.ops import generators, random
from mpgrad.ops.new_tensors import creation
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor
from tests.torch_outcomes import Of


def leaf(*values: float) -> Tensor:
    return creation.tensor(list(values), requires_grad=True)


# ------------------------------------------------------------------------ printing


@pytest.mark.parametrize(
    "data",
    [
        [1.0, 2.0, 3.0],
        [[1.0, 2.5], [-3.0, 4.0]],
        [1e-9, 1.0],
        [1e9, 2.0],
        [float("nan"), 1.5, float("inf")],
        [1, 20, -3],
        [True, False],
        3.25,
        [],
        [[0.1234567, 100.0]],
    ],
)
def test_prints_as_pytorch_prints(data: object, of_torch: Of) -> None:
    for oracle, expected in of_torch(lambda torch: repr(torch.tensor(data))):
        assert repr(creation.tensor(data)) == expected, oracle


def test_prints_what_is_not_the_default() -> None:
    x = leaf(1.0)
    assert repr(x) == "tensor([1.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2.], grad_fn=<MulBackward0>)"
    assert repr(x.detach().double()) == "tensor([1.], dtype=mpgrad.float64)"


def test_long_tensors_are_summarized() -> None:
    text = repr(creation.arange(2000))
    assert "..." in text
    assert len(text) < 100


# ------------------------------------------------------------------------ Python's protocols


def test_conversions_to_python_values() -> None:
    x = creation.tensor([[1.5]])
    assert (x.item(), float(x), int(x), bool(x)) == (1.5, 1.5, 1, True)
    assert creation.tensor([[1, 2]]).tolist() == [[1, 2]]
    assert [10, 20, 30][creation.tensor(1)] == 20
    assert len(creation.zeros(3, 2)) == 3
    assert [row.tolist() for row in creation.tensor([[1], [2]])] == [[1], [2]]
    assert 2 in creation.tensor([1, 2])
    assert f"{creation.tensor(0.5):.2f}" == "0.50"


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        (lambda x: x.item(), RuntimeError, "cannot be converted to Scalar"),
        (bool, RuntimeError, "more than one value is ambiguous"),
        (lambda x: len(x.sum()), TypeError, "0-d tensor"),
        (lambda x: list(x.sum()), TypeError, "iteration over a 0-d tensor"),
        (lambda x: x.numpy(), RuntimeError, r"Can't call numpy\(\) on Tensor that requires grad"),
        (lambda x: x.reshape(4), RuntimeError, "is invalid for input of size 2"),
        (lambda x: x.sum(3), IndexError, "Dimension out of range"),
        (lambda x: x @ creation.ones(3), RuntimeError, "cannot be multiplied"),
        (lambda x: x[0.5], IndexError, "tensors used as indices"),
        (lambda x: x.to(device="tpu"), RuntimeError, "Expected one of cpu, cuda device type"),
        (lambda x: x.sum(dim=0, axis=0), TypeError, "mean the same"),
        (lambda x: copy.deepcopy(x * 1), RuntimeError, "graph leaves"),
    ],
)
def test_misuse_raises_what_pytorch_raises(action: object, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        action(leaf(1.0, 2.0))


def test_comparison_with_something_else_is_false() -> None:
    x = leaf(1.0)
    assert (x == None) is False  # noqa: E711
    assert x in [x]
    assert len({x, x}) == 1


def test_pickle_and_deepcopy_keep_leaves() -> None:
    x = leaf(1.0, 2.0)
    x.grad = creation.tensor([3.0, 4.0])
    x.note = "kept"
    for again in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert again.tolist() == [1.0, 2.0]
        assert (again.requires_grad, again.is_leaf, again.note) == (True, True, "kept")
        assert not np.may_share_memory(again._array, x._array)
    assert copy.deepcopy(x).grad.tolist() == [3.0, 4.0]


def test_deepcopy_keeps_shared_tensors_shared() -> None:
    x = leaf(1.0)
    first, second = copy.deepcopy([x, x])
    assert first is second


# ------------------------------------------------------------------------ conversions


def test_casts_are_differentiable() -> None:
    y = leaf(1.0).double()
    assert y.dtype == np.float64
    assert y.grad_fn.name() == "ToCopyBackward0"
    assert leaf(1.5).long().requires_grad is False
    x = leaf(1.0)
    assert x.to("cpu") is x
    assert x.to(np.float32) is x
    assert x.to(y).dtype == np.float64


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, "int64"), (2, "float32")),
        ((2, "int32"), 1.5),
        ((2, "int64"), True),
        ((2, "bool"), 3),
        ((2, "bool"), (2, "uint8")),
        ((2, "float32"), (0, "float64")),
        ((0, "float32"), (2, "float64")),
        ((2, "int32"), (0, "int64")),
        ((2, "int64"), (0, "float64")),
        ((0, "int64"), (0, "float32")),
        ((2, "float16"), (2, "float32")),
        ((2, "float64"), 1),
    ],
)
@pytest.mark.parametrize("operation", ["add", "mul", "div", "maximum"])
def test_dtypes_are_promoted_as_in_pytorch(
    a: object, b: object, operation: str, of_torch: Of
) -> None:
    def operand(spec: object, lib: Any) -> object:
        if not isinstance(spec, tuple):
            return spec
        shape, dtype = (2,) * (spec[0] // 2), spec[1]
        return lib.ones(shape, dtype=getattr(lib, dtype))

    def result(lib: Any) -> list[object]:
        made = getattr(lib, operation)(operand(a, lib), operand(b, lib))
        return [str(made.dtype).rpartition(".")[2], *made.shape]

    if operation == "maximum" and not isinstance(b, tuple):
        b = (0, {int: "int64", float: "float32", bool: "bool"}[type(b)])
    for oracle, theirs in of_torch(result):
        assert result(mg) == theirs, oracle


# ------------------------------------------------------------------------ detach, data, views


def test_detach_shares_memory_and_versions() -> None:
    x = leaf(1.0, 2.0)
    detached = x.detach()
    detached.add_(1)
    assert x.tolist() == [2.0, 3.0]
    assert x._version == 1
    assert not detached.requires_grad


def test_data_shares_memory_but_not_versions() -> None:
    x = leaf(1.0, 2.0)
    x.data.mul_(2)
    assert x.tolist() == [2.0, 4.0]
    assert x._version == 0
    x.data = creation.zeros(3)
    assert x.shape == (3,)


def test_views_share_versions_and_copies_do_not() -> None:
    x = creation.zeros(2, 3)
    view, picked = x[0], x[[0]]
    x.T.add_(1)
    assert (x._version, view._version, picked._version) == (1, 1, 0)
    assert (view.tolist(), picked.tolist()) == ([1.0] * 3, [[0.0] * 3])


# ------------------------------------------------------------------------ in place


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x.add_(1), [2, 5]),
        (lambda x: x.add_(creation.tensor([1.0, 2.0]), alpha=-2), [-1, 0]),
        (lambda x: x.sub_(1), [0, 3]),
        (lambda x: x.mul_(creation.tensor(3.0)), [3, 12]),
        (lambda x: x.div_(2), [0.5, 2]),
        (lambda x: x.pow_(2), [1, 16]),
        (lambda x: x.zero_(), [0, 0]),
        (lambda x: x.fill_(7), [7, 7]),
        (lambda x: x.copy_(creation.tensor([5, 6])), [5, 6]),
        (lambda x: x.clamp_(2, 3), [2, 3]),
        (lambda x: x.sqrt_(), [1, 2]),
        (lambda x: x.neg_(), [-1, -4]),
    ],
)
def test_in_place_forms(change: object, expected: list[float]) -> None:
    x = creation.tensor([1.0, 4.0])
    array = x._array
    assert change(x) is x
    assert x.tolist() == expected
    assert x._array is array
    assert x._version == 1


def test_augmented_assignment_and_item_assignment() -> None:
    x = same = creation.tensor([1.0, 2.0, 3.0])
    x += 1
    x *= 2
    x -= 1
    x /= 1
    x[0] = 10
    x[creation.tensor([1, 2])] = creation.tensor([7.0, 8.0])
    x[x > 9] = 0
    assert x is same
    assert x.tolist() == [0.0, 7.0, 8.0]
    assert x._version == 7


def test_random_fills_repeat_with_the_seed() -> None:
    generators.manual_seed(5)
    first = (creation.zeros(4).normal_(), creation.zeros(4).uniform_(2, 3), random.randn(2))
    generators.manual_seed(5)
    second = (creation.zeros(4).normal_(), creation.zeros(4).uniform_(2, 3), random.randn(2))
    for one, other in zip(first, second, strict=True):
        assert one.tolist() == other.tolist()
    assert all(2 <= value < 3 for value in first[1].tolist())


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.zero_(),
        lambda x: x.__setitem__(0, 1.0),
        lambda x: x.exp_(),
        lambda x: x.normal_(),
        lambda x: x.__iadd__(1),
    ],
)
def test_a_leaf_that_requires_grad_is_changed_under_no_grad_only(change: object) -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in"):
        change(x)
    assert (x.tolist(), x._version) == ([1.0, 2.0], 0)
    with no_grad():
        change(x)
    assert x._version == 1


def test_in_place_keeps_dtype_and_shape() -> None:
    with pytest.raises(RuntimeError, match="can't be cast"):
        creation.tensor([1, 2]).add_(0.5)
    with pytest.raises(RuntimeError, match="can't be cast"):
        creation.tensor([1, 2]).div_(2)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        creation.zeros(2).add_(creation.zeros(3, 2))
    with pytest.raises(RuntimeError, match="single memory location"):
        creation.zeros(1).expand(3).add_(1)


def test_a_saved_tensor_notices_a_change() -> None:
    x, factor = leaf(1.0), creation.tensor([2.0])
    y = x * factor
    factor.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.grad_fn.saved_arrays()


# ------------------------------------------------------------------------ NumPy


def test_numpy_functions_are_recorded() -> None:
    x = leaf(1.0, 4.0)
    assert np.sqrt(x).grad_fn.name() == "SqrtBackward0"
    assert np.sum(x, axis=0).grad_fn.name() == "SumBackward1"
    assert np.concatenate([x, x]).grad_fn.name() == "CatBackward0"
    product = np.array([2.0, 3.0], np.float32) * x
    assert product.grad_fn.name() == "MulBackward0"
    assert product.tolist() == [2.0, 12.0]
    assert (np.float32(2) * x).dtype == np.float32


def test_other_numpy_functions_get_the_array() -> None:
    x = creation.tensor([3.0, 1.0])
    assert np.sort(x).tolist() == [1.0, 3.0]
    assert np.allclose(x, [3.0, 1.0])
    assert np.asarray(x) is x._array
    total = np.zeros(2, np.float32)
    total += x
    assert total.tolist() == [3.0, 1.0]
    with pytest.raises(RuntimeError, match="Can't call numpy"):
        np.median(leaf(2.0, 1.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.sum(x, 0, np.float32),
        lambda x: np.mean(x, 1, np.float32, keepdims=True),
        lambda x: np.var(x, 0, None, None, 1),
        lambda x: np.std(x, axis=0, ddof=1, keepdims=True),
        lambda x: np.max(x, axis=0, initial=9.0),
        lambda x: np.prod(x, 1, np.float32),
        lambda x: np.cumsum(x, None, np.float32),
        lambda x: np.clip(x, min=2.0),
        lambda x: np.clip(x, 2.0, 3.0),
        lambda x: np.reshape(x, shape=(3, 2)),
        lambda x: np.reshape(x, (3, 2), order="F"),
        lambda x: np.ravel(x, order="F"),
        lambda x: np.expand_dims(x, (0, -1)),
        lambda x: np.concatenate([x, x], axis=None),
        lambda x: np.einsum("ij->i", x, optimize=True),
        lambda x: np.swapaxes(a=x, axis1=0, axis2=1),
        lambda x: np.moveaxis(x, 0, -1),
        lambda x: np.flip(x),
        lambda x: np.flip(x, axis=1),
        lambda x: np.roll(x, 2),
        lambda x: np.roll(x, (1, 2), axis=(0, 1)),
        lambda x: np.tile(x, 2),
        lambda x: np.tile(x, (2, 1, 3)),
        lambda x: np.repeat(x, 2),
        lambda x: np.repeat(x, [1, 2, 0], axis=1),
        lambda x: np.sort(-x, axis=0),
        lambda x: np.sort(-x, axis=None),
        lambda x: np.vstack([x, np.ones(3)]),
        lambda x: np.hstack((x, np.ones((2, 1)))),
        lambda x: np.diag(x, 1),
        lambda x: np.diag(x[0], -1),
        lambda x: np.diagonal(x, 1),
        lambda x: np.trace(x, 1),
        lambda x: np.trace(np.stack([x, x, x]), axis1=0, axis2=1),
        lambda x: np.tril(x, -1),
        lambda x: np.triu(x, k=1),
        lambda x: np.outer(x, [1.0, 2.0]),
        lambda x: np.inner(x, x[0]),
        lambda x: np.kron(np.eye(2), x),
        lambda x: np.tensordot(x, x, axes=([0, 1], [0, 1])),
        lambda x: np.tensordot(np.ones((4, 2)), x, 1),
        lambda x: np.linalg.inv(x[:, :2] + np.eye(2)),
        lambda x: np.linalg.det(x[:, 1:]),
        lambda x: tuple(np.linalg.slogdet(x[:, 1:])),
        lambda x: np.linalg.solve(x[:, 1:], [1.0, 2.0]),
        lambda x: np.linalg.solve(np.stack([x[:, 1:]] * 2), x[:, :2]),
        lambda x: np.linalg.cholesky(np.dot(x, x.T) + np.eye(2)),
        lambda x: np.linalg.eigh(np.dot(x, x.T))[0],
        lambda x: np.linalg.norm(x),
        lambda x: np.linalg.norm(x, 1, axis=1, keepdims=True),
        lambda x: np.linalg.norm(x, "nuc"),
        lambda x: np.add.reduce(x, None),
        lambda x: np.cbrt(x[0, 0]),
        lambda x: np.divmod(x, 2),
    ],
)
def test_numpy_functions_take_numpys_arguments(call: Any) -> None:
    array = np.arange(6.0).reshape(2, 3)
    found, expected = call(creation.from_numpy(array)), call(array)
    for one, other in zip(
        *(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True
    ):
        assert np.asarray(one).dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-6)


def test_ufuncs_give_tensors() -> None:
    x = creation.tensor([[4.0, 1.0]])
    results = (np.cbrt(x[0, 0]), np.add.reduce(x, None), *np.divmod(x, 3))
    assert all(isinstance(result, mg.Tensor) for result in results)
    assert np.frompyfunc(str, 1, 1)(x).tolist() == [["4.0", "1.0"]]


def test_numpy_functions_do_not_write_into_a_tensor() -> None:
    x, out = creation.tensor([4.0, 1.0]), creation.tensor([0.0])
    for call in (
        lambda: np.sum(x, axis=0, keepdims=True, out=out),
        lambda: np.add(x, x, out=x),
    ):
        with pytest.raises(TypeError, match="in-place"):
            call()
    assert (x.tolist(), out.tolist()) == ([4.0, 1.0], [0.0])


def test_numpy_shares_memory() -> None:
    array = np.zeros(2)
    x = creation.from_numpy(array)
    array[0] = 5
    assert x.numpy() is array
    assert x.tolist() == [5.0, 0.0]
    assert creation.tensor(array)._array is not array


# ------------------------------------------------------------------------ creation


def test_dtypes_of_new_tensors() -> None:
    assert creation.tensor([1.0]).dtype == np.float32
    assert creation.tensor([1, 2]).dtype == np.int64
    assert creation.tensor([True]).dtype == bool
    assert creation.tensor(np.zeros(1)).dtype == np.float64
    assert creation.arange(3).dtype == np.int64
    assert creation.arange(0, 1, 0.5).tolist() == [0.0, 0.5]
    assert creation.full((2,), 3).dtype == np.int64
    assert creation.zeros(2, 3).shape == creation.zeros((2, 3)).shape == (2, 3)
    assert creation.ones_like(creation.zeros(2, dtype=np.float64)).dtype == np.float64
    assert creation.eye(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert creation.linspace(0, 1, 3).tolist() == [0.0, 0.5, 1.0]


def test_data_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="can't make a Tensor"):
        creation.tensor(["a"])
    with pytest.raises(ValueError, match="inhomogeneous"):
        creation.tensor([[1.0], [1.0, 2.0]])
    with pytest.raises(RuntimeError, match="floating point and complex dtype"):
        creation.tensor([1], requires_grad=True)
    with pytest.warns(UserWarning, match="copy construct"):
        creation.tensor(creation.zeros(1))


@pytest.mark.parametrize(
    "values",
    [
        [1 + 2j, 3 - 1j],
        [1.5 + 2j, -0.5 - 3j],
        [[-1.1312 + 2.4717j, 10.8523 - 16.9014j], [0.5, 1e-3j]],
        [1e10 + 1j, -2.5],
        1j,
    ],
)
def test_complex_numbers_print_as_in_pytorch(values: object, of_torch: Of) -> None:
    for oracle, expected in of_torch(lambda torch: repr(torch.tensor(values))):
        assert repr(creation.tensor(values)) == expected, oracle


def test_numpy_prod_of_a_tensor() -> None:
    assert leaf(2.0, 3.0).prod().tolist() == np.prod(leaf(2.0, 3.0)).tolist() == 6.0


@pytest.mark.parametrize(
    "shapes",
    [((2, 3, 4), (5, 4, 6)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (4,)), ((), (2, 3)), ((4,), (4, 2))],
)
def test_numpys_dot_pairs_all_matrices(shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (np.random.default_rng(n).normal(size=shape) for n, shape in enumerate(shapes))
    x = creation.from_numpy(np.asarray(a)).requires_grad_()
    result = np.dot(x, creation.from_numpy(np.asarray(b)))
    np.testing.assert_allclose(result.detach().numpy(), np.dot(a, b), rtol=1e-12)
    assert result.requires_grad
