"""Reads IDX files, in which MNIST and its relatives come."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from io import BufferedIOBase

import numpy as np

from mpgrad.recording.tensors.tensor import Tensor

#: The types of elements by their code in the header; all are big-endian.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

#: The bytes of one read.
_PIECE_BYTES = 1 << 20


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """The array in an IDX file (http://yann.lecun.com/exdb/mnist), compressed by gzip or not.

    Args:
        path: for instance of ``train-images-idx3-ubyte``, which gives uint8 of shape
            (60000, 28, 28), or of ``train-labels-idx1-ubyte.gz``: uint8 of shape (60000,).

    Raises:
        ValueError: the file is damaged, cut off, or no IDX file.
    """
    try:
        with open(path, "rb") as file:
            is_compressed = file.peek(2)[:2] == b"\x1f\x8b"
            return Tensor(_array(gzip.GzipFile(fileobj=file) if is_compressed else file))
    except (EOFError, ValueError, struct.error, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be read as an IDX file: {error}") from error


def _array(file: BufferedIOBase) -> np.ndarray:
    begin = file.read(4)
    if len(begin) < 4 or begin[:2] != b"\0\0" or begin[2] not in _TYPES:
        raise ValueError(f"it begins with {begin!r}")
    dtype, dimensions = np.dtype(_TYPES[begin[2]]), begin[3]
    shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
    header = 4 + 4 * dimensions
    expected = math.prod(shape) * dtype.itemsize
    data = bytearray()
    # A file of some bytes may unpack to any number.
    while len(data) <= expected and (piece := file.read(_PIECE_BYTES)):
        data += piece
    if len(data) != expected:
        found = "more" if len(data) > expected else header + len(data)
        raise ValueError(f"shape {shape} needs {header + expected} bytes, and it has {found}")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="))
