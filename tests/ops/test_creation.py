"""Functions that make tensors: dtypes by PyTorch's rules, shapes, copies, and seeded randomness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg


@pytest.mark.parametrize(
    ("data", "dtype"),
    [(1.5, mg.float32), ([1, 2], mg.int64), ([True, False], mg.bool), ([1, 2.0], mg.float32)],
)
def test_dtypes_of_python_values(data: Any, dtype: Any) -> None:
    assert mg.tensor(data).dtype == dtype


@pytest.mark.parametrize(
    "data", [[1, 2], (1, 2), 3, 1.5, True, range(2), None, "a", np.float64(1.5), mg.ones(2)]
)
def test_the_constructor_takes_no_data(data: Any) -> None:
    with pytest.raises(TypeError, match=r"wraps a NumPy or CuPy array.*mpgrad\.tensor\(\.\.\.\)"):
        mg.Tensor(data)


def test_an_array_keeps_its_dtype_and_is_copied() -> None:
    array = np.arange(3.0)
    made = mg.tensor(array)
    assert made.dtype == mg.float64
    array[0] = 7.0
    assert made.tolist() == [0.0, 1.0, 2.0]
    shared = mg.from_numpy(array)
    array[0] = 9.0
    assert shared.tolist() == [9.0, 1.0, 2.0]


def test_as_tensor_passes_a_tensor_through() -> None:
    made = mg.tensor([1.0])
    assert mg.as_tensor(made) is made
    assert mg.as_tensor([1.0]).tolist() == [1.0]


def test_the_likes_take_shape_and_dtype() -> None:
    model = mg.zeros(2, 3, dtype=mg.float64)
    for made, value in (
        (mg.zeros_like(model), 0.0),
        (mg.ones_like(model), 1.0),
        (mg.full_like(model, 4.0), 4.0),
    ):
        assert made.shape == (2, 3)
        assert made.dtype == mg.float64
        assert made.tolist() == [[value] * 3] * 2
    assert mg.empty_like(model).shape == (2, 3)


def test_ranges_and_the_identity() -> None:
    assert mg.arange(4).dtype == mg.int64
    assert mg.arange(1.0, 2.0, 0.25).tolist() == [1.0, 1.25, 1.5, 1.75]
    assert mg.linspace(0.0, 1.0, 3).tolist() == [0.0, 0.5, 1.0]
    assert mg.eye(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_a_seed_repeats_everything_random() -> None:
    def draw() -> list[Any]:
        mg.manual_seed(11)
        model = mg.zeros(4)
        drawn = (mg.rand(3), mg.randn(3), mg.rand_like(model), mg.randn_like(model), mg.randperm(9))
        return [tensor.tolist() for tensor in drawn]

    first = draw()
    assert draw() == first
    assert sorted(first[-1]) == list(range(9))
    assert first[0] != first[1]


def test_only_floating_tensors_require_grad() -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        mg.tensor([1, 2], requires_grad=True)
    assert mg.tensor(np.ones(2, np.complex64), requires_grad=True).requires_grad


def test_tensors_of_one_dtype_by_their_old_names() -> None:
    assert mg.LongTensor([1, 2]).dtype == mg.int64
    assert mg.FloatTensor(2, 3).shape == (2, 3)
    assert mg.LongTensor((3, 2)).tolist() == [3, 2]
    assert mg.FloatTensor(mg.ones(3, 2).size()).shape == (3, 2)
    assert mg.BoolTensor().shape == (0,)
    assert mg.DoubleTensor(mg.tensor([1, 2])).tolist() == [1.0, 2.0]
    assert isinstance(mg.tensor([1]), mg.LongTensor)
    assert not isinstance(mg.tensor([1]), mg.IntTensor)
    with pytest.raises(TypeError, match="expected a shape as integers"):
        mg.LongTensor([1], [2])


def test_new_tensors_take_dtype_and_place_of_another() -> None:
    x = mg.zeros(2, dtype=mg.float64)
    assert x.new(2, 3).shape == x.new(mg.zeros(2, 3).size()).shape == (2, 3)
    assert x.new([1, 2]).tolist() == [1.0, 2.0]
    made = [x.new_zeros(2), x.new_ones((2,)), x.new_full((2,), 7), x.new_tensor([1, 2])]
    assert {tensor.dtype for tensor in [*made, x.new_empty(2)]} == {mg.float64}
    assert [tensor.tolist() for tensor in made] == [[0, 0], [1, 1], [7, 7], [1, 2]]
    assert x.new_ones(2, dtype=mg.int64, requires_grad=False).dtype == mg.int64


def test_tensors_of_one_element_stand_for_numbers_in_lists() -> None:
    x = mg.ones(1, requires_grad=True)
    assert mg.tensor([x, [2.0][0], mg.tensor(3.0)]).tolist() == [1.0, 2.0, 3.0]


def test_a_memory_format_is_accepted_by_all_that_make_tensors_like_others() -> None:
    x = mg.zeros(2, 3, 4, 4)
    for layout in (mg.preserve_format, mg.channels_last):
        for make in (mg.zeros_like, mg.ones_like, mg.empty_like, mg.rand_like, mg.randn_like):
            assert make(x, memory_format=layout).shape == x.shape
        for made in (mg.full_like, mg.randint_like):
            assert made(x, 3, memory_format=layout).is_contiguous()
        assert x.to(memory_format=layout).clone(memory_format=layout).shape == x.shape


def test_a_device_is_the_default_inside_with() -> None:
    outside = mg.get_default_device()
    with mg.device("cuda:1") as gpu:
        assert mg.get_default_device() is gpu
        with mg.device("cpu"):
            assert mg.ones(1).device == mg.device("cpu")
        assert mg.get_default_device() is gpu
    with pytest.raises(ZeroDivisionError), gpu:
        raise ZeroDivisionError
    assert mg.get_default_device() is outside
