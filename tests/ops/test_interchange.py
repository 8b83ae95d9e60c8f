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


def test_read_only_memory_makes_a_tensor_that_nothing_writes_into() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    tensor = mg.from_dlpack(array)
    assert tensor.data_ptr() == array.ctypes.data
    with pytest.raises(RuntimeError, match="read-only"):
        tensor.add_(1)
    mg.from_dlpack(array, copy=True).add_(1)
    assert array.tolist() == [1.0, 1.0]


def test_negative_strides_are_not_given_away() -> None:
    tensor = mg.from_numpy(np.arange(3.0)[::-1])
    with pytest.raises(BufferError, match="negative strides"):
        np.from_dlpack(tensor)
    assert np.from_dlpack(tensor.clone()).tolist() == [2.0, 1.0, 0.0]
    assert np.from_dlpack(tensor, copy=True).tolist() == [2.0, 1.0, 0.0]


def test_a_copy_and_a_device_may_be_asked_for() -> None:
    array = np.ones(2)
    assert mg.from_dlpack(array, device="cpu", copy=False).numpy().ctypes.data == array.ctypes.data
    assert mg.from_dlpack(array, copy=True).numpy().ctypes.data != array.ctypes.data
    with pytest.raises(RuntimeError):
        mg.from_dlpack(array, device="cuda:99")
    tensor = mg.ones(2)
    assert np.from_dlpack(tensor, copy=True).ctypes.data != tensor.data_ptr()


def test_a_capsule_is_taken() -> None:
    tensor = mg.arange(3.0)
    bare = mg.from_dlpack(mg.to_dlpack(tensor))
    assert bare.data_ptr() == tensor.data_ptr()
    with pytest.raises(RuntimeError, match="read-only"):
        bare.zero_()
    versioned = tensor.__dlpack__(max_version=(1, 0))
    assert "dltensor_versioned" in repr(versioned)
    assert mg.from_dlpack(versioned).data_ptr() == tensor.data_ptr()
    with pytest.raises(RuntimeError, match="taken once"):
        mg.from_dlpack(versioned)


def test_pinned_memory_is_the_hosts() -> None:
    class Pinned:
        array = np.ones(2)

        def __dlpack__(self, **_: Any) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 3, 0

    assert mg.from_dlpack(Pinned()).data_ptr() == Pinned.array.ctypes.data


def test_a_stream_is_for_gpus() -> None:
    tensor = mg.ones(2)
    assert tensor.__dlpack__(stream=-1) is not None
    with pytest.raises(AssertionError, match="stream should be None"):
        tensor.__dlpack__(stream=1)
    with pytest.raises(TypeError, match="stream must be"):
        tensor.__dlpack__(stream="1")


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
