"""Names of PyTorch that programs use and that are short here: buffers, diagonals, DataParallel."""

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
