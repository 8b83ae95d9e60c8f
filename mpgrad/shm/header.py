"""The 64 bytes before every block, which show a reader whether its handle is stale.

This module does not load NumPy.
"""

from __future__ import annotations

import struct

from mpgrad.errors import ProtocolError
from mpgrad.shm.free_list import HEADER_BYTES
from mpgrad.shm.segment import Segment

_MAGIC = 0x4752504D
# Magic, reserved, generation, bytes of payload asked for, version counter of the tensor.
_LAYOUT = struct.Struct("<IIQQQ")


def write_header(segment: Segment, offset: int, generation: int, nbytes: int) -> None:
    """Mark the block at ``offset`` as being in its use number ``generation``.

    Generation 0 marks a block that is free.

    Raises:
        ProtocolError: the block does not lie in the segment.
    """
    check_block(segment, offset, nbytes)
    _LAYOUT.pack_into(segment.buffer, offset - HEADER_BYTES, _MAGIC, 0, generation, nbytes, 0)


def check_header(segment: Segment, offset: int, generation: int) -> int:
    """Verify that the block at ``offset`` is in its use number ``generation``.

    Returns:
        The bytes of its payload.

    Raises:
        ProtocolError: no block lies there, or it has been freed or used again since.
    """
    check_block(segment, offset, 0)
    magic, _, found, nbytes, _ = _LAYOUT.unpack_from(segment.buffer, offset - HEADER_BYTES)
    if magic != _MAGIC or found != generation:
        raise ProtocolError(
            f"stale handle: generation {generation} at offset {offset} of {segment.name}, "
            f"which holds generation {found if magic == _MAGIC else 'none'}"
        )
    check_block(segment, offset, nbytes)
    return int(nbytes)


def check_block(segment: Segment, offset: int, nbytes: int) -> None:
    """Verify that a block of ``nbytes`` can lie at ``offset``.

    Raises:
        ProtocolError: it would leave the segment, or is not aligned.
    """
    if offset < HEADER_BYTES or offset % HEADER_BYTES or offset + nbytes > segment.nbytes:
        raise ProtocolError(
            f"no block of {nbytes} bytes can lie at offset {offset} of {segment.name}, "
            f"which has {segment.nbytes} bytes"
        )
