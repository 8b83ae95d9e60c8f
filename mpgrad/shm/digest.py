"""digest_of(): a number that shows whether bytes have changed."""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

#: Up to so many bytes, all of them go into a checksum; of more, the sums of rows and columns.
CHECKSUM_BYTES_MAX = 32 << 10
_WORDS_OF_ROW = 256


def digest_of(array: Array) -> int:
    """A number that differs if the bytes differ, or their order does, but for chance."""
    if not array.size:
        return 1
    data = np.frombuffer(np.ascontiguousarray(array).data.cast("B"), np.uint8)
    row = 8 * _WORDS_OF_ROW
    end = data.nbytes // row * row if data.nbytes > CHECKSUM_BYTES_MAX else 0
    digest = zlib.crc32(data[end:].data)
    if end:
        # Both sums are memory-bound, which a checksum is not; words that change places are in
        # another row, or in another column.
        words = data[:end].view(np.uint64).reshape(-1, _WORDS_OF_ROW)
        for axis in (0, 1):
            digest = zlib.crc32(words.sum(axis, dtype=np.uint64).data, digest)
    return digest
