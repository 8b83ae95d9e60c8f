"""Reads IDX files, in which MNIST and its relatives come."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib

import numpy as np

from mpgrad.tensors.tensor import Tensor

#: The types of elements by their code in the header; all are big-endian.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """The array in an IDX file (http://yann.lecun.com/exdb/mnist), compressed by gzip or not.

    Args:
        path: for instance of ``train-images-idx3-ubyte``, which gives uint8 of shape
            (60000, 28, 28), or of ``train-labels-idx1-ubyte.gz``: uint8 of shape (60000,).

    Raises:
        ValueError: the file is damaged, cut off, or no IDX file.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return Tensor(_array(data))
    except (EOFError, OSError, ValueError, struct.error, zlib.error) as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be read as an IDX file: {error}") from error


def _array(data: bytes) -> np.ndarray:
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise ValueError(f"it begins with {data[:4]!r}")
    dtype, dimensions = np.dtype(_TYPES[data[2]]), data[3]
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    begin = 4 + 4 * dimensions
    expected = begin + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"shape {shape} needs {expected} bytes, and it has {len(data)}")
    array = np.frombuffer(data, dtype, offset=begin).reshape(shape)
    return array.astype(dtype.newbyteorder("="))
