"""Tensors and arrays of other libraries in the same memory, and what stops it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpgrad as mg


def test_a_tensor_shares_the_memory_of_an_array() -> None:
    array = np.arange(6.0).reshape(2, 3)[:, ::2]
    tensor = mg.from_dlpack(array)
    assert tensor.dtype == mg.float64
    assert tensor.stride() == (3, 2)
    tensor[1, 1] = 7.0
    assert array.tolist() == [[0, 2], [3, 7]]


def test_an_array_shares_the_memory_of_a_tensor() -> None:
    tensor = mg.zeros(2, 3)
    array = np.from_dlpack(tensor.t())
    array[2, 1] = 5.0
    assert tensor.tolist() == [[0, 0, 0], [0, 0, 5]]
    assert tensor.__dlpack_device__() == (1, 0)


def test_pytorch_takes_a_tensor_and_gives_one() -> None:
    torch = pytest.importorskip("torch")
    mine = mg.arange(4.0)
    theirs = torch.from_dlpack(mine)
    theirs.mul_(2)
    assert mine.tolist() == [0, 2, 4, 6]
    back = mg.from_dlpack(theirs[1:])
    back.zero_()
    assert theirs.tolist() == [0, 0, 0, 0]
    assert torch.utils.dlpack.from_dlpack(mg.to_dlpack(mine)).data_ptr() == mine.data_ptr()
    with pytest.raises(TypeError, match="from_dlpack"):
        mg.from_dlpack(torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(BufferError):
        mg.from_dlpack(torch.zeros(2, requires_grad=True))


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16, np.complex128])
def test_all_dtypes_travel(dtype: Any) -> None:
    array = np.ones(3, dtype)
    tensor = mg.utils.dlpack.from_dlpack(array)
    assert tensor.dtype == dtype
    assert np.from_dlpack(tensor).ctypes.data == array.ctypes.data


def test_what_requires_grad_is_not_given_away() -> None:
    with pytest.raises(BufferError, match="detach"):
        np.from_dlpack(mg.ones(2, requires_grad=True))


def test_read_only_memory_is_not_taken() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(BufferError):
        mg.from_dlpack(array)


def test_words_for_what_is_no_array() -> None:
    with pytest.raises(TypeError, match=r"__dlpack__, such as .* not list"):
        mg.from_dlpack([1, 2])

    class Elsewhere:
        def __dlpack__(self) -> None: ...
        def __dlpack_device__(self) -> tuple[int, int]:
            return 10, 0

    with pytest.raises(RuntimeError, match="device 10"):
        mg.from_dlpack(Elsewhere())
    with pytest.raises(AttributeError, match="on the CPU"):
        mg.ones(2).__cuda_array_interface__  # noqa: B018
    assert not hasattr(mg.ones(2), "__cuda_array_interface__")
