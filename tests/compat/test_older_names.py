"""Names of PyTorch that programs use and that are short here: buffers, printing, DataParallel."""

from __future__ import annotations

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn


def test_a_tensor_lies_in_a_buffer() -> None:
    data = bytearray(np.arange(4, dtype=np.int32).tobytes())
    x = mg.frombuffer(data, dtype=mg.int32, offset=4)
    assert x.tolist() == [1, 2, 3]
    data[4:8] = np.int32(7).tobytes()
    assert x.tolist() == [7, 2, 3]
    with pytest.warns(UserWarning, match="not writable"):
        mg.frombuffer(bytes(8), dtype=mg.float32)


def test_options_change_how_tensors_print() -> None:
    x = mg.tensor([1.23456, 100.0])
    try:
        mg.set_printoptions(precision=2)
        assert repr(x) == "tensor([  1.23, 100.00])"
        mg.set_printoptions(sci_mode=True)
        assert repr(x) == "tensor([1.23e+00, 1.00e+02])"
        mg.set_printoptions(profile="full")
        assert "..." not in repr(mg.arange(2000))
    finally:
        mg.set_printoptions(profile="default")
    assert repr(x) == "tensor([  1.2346, 100.0000])"
    assert "..." in repr(mg.arange(2000))
    with pytest.raises(ValueError, match="profile must be one of"):
        mg.set_printoptions(profile="long")


def test_a_diagonal_is_filled() -> None:
    tall = mg.zeros(5, 2).fill_diagonal_(1, wrap=True)
    expected = np.zeros((5, 2))
    np.fill_diagonal(expected, 1, wrap=True)
    np.testing.assert_array_equal(tall.numpy(), expected)
    assert mg.zeros(3, 3, 3).fill_diagonal_(2).sum().item() == 6
    with pytest.raises(RuntimeError, match="equal length"):
        mg.zeros(3, 3, 2).fill_diagonal_(2)


def test_a_function_of_each_element() -> None:
    assert mg.tensor([1.0, 4.0]).apply_(lambda v: v**0.5).tolist() == [1, 2]


def test_data_parallel_is_the_module_under_another_name() -> None:
    model = nn.DataParallel(nn.Linear(2, 1))
    x = mg.ones(3, 2)
    np.testing.assert_array_equal(model(x).detach().numpy(), model.module(x).detach().numpy())
    assert sorted(model.state_dict()) == ["module.bias", "module.weight"]
