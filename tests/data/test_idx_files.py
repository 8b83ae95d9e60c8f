"""IDX files, in which MNIST comes: all types of elements, and damage."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mpgrad.data import read_idx


def written(path: Path, array: np.ndarray, code: int) -> bytes:
    """An IDX file of ``array``, whose bytes are in the order of the file."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    data = header + array.tobytes()
    path.write_bytes(data)
    return data


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_every_type_is_read(tmp_path: Path, code: int, dtype: str) -> None:
    array = np.array([[1, 2, 3], [4, 5, 100]], dtype)
    data = written(tmp_path / "plain", array, code)
    (tmp_path / "compressed").write_bytes(gzip.compress(data))
    for name in ("plain", "compressed"):
        read = read_idx(tmp_path / name)
        assert read.dtype == np.dtype(dtype).newbyteorder("=")
        assert read.tolist() == array.tolist()
        read.add_(1)


def test_a_file_that_is_cut_off_or_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    whole = written(path, np.zeros((5, 4, 4), np.uint8), 8)
    compressed = gzip.compress(whole)
    cut = [data[:n] for data in (whole, compressed) for n in (0, 3, 9, 20, len(data) - 1)]
    for damaged in (*cut, whole + b"0", b"\x89PNG" + whole, b"\x1f\x8b" + whole, whole[:3]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="train-images-idx3-ubyte' cannot be read as an IDX"):
            read_idx(path)
    path.write_bytes(whole[:50])
    with pytest.raises(ValueError, match=r"shape \(5, 4, 4\) needs 96 bytes, and it has 50$"):
        read_idx(path)


def test_lengths_that_no_memory_has_are_refused(tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, *[2**32 - 1] * 3))
    with pytest.raises(ValueError, match="huge' cannot be read"):
        read_idx(tmp_path / "huge")


def test_a_small_file_is_not_unpacked_without_end(tmp_path: Path) -> None:
    header = struct.pack(">BBBBI", 0, 0, 8, 1, 10)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(header + bytes(1 << 26)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"needs 18 bytes, and it has more$"):
        read_idx(tmp_path / "bomb.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 23
