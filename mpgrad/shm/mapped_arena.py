"""MappedArena: arrays over the blocks of a segment, and the block of an array.

The 64 bytes before a block show a reader whether its handle is stale, and a Lease notices when the
last array over a block dies. This file knows arrays and handles, not tensors.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.base.handles import ENGINE_ARENA, Block, TensorHandle
from mpgrad.errors import BytesCorrupted, ProtocolError
from mpgrad.shm.digest import digest_of
from mpgrad.shm.free_list import HEADER_BYTES
from mpgrad.shm.segment import Segment

Array: TypeAlias = np.ndarray[Any, Any]

#: Identifies one use of a block: (offset of its payload, generation).
Token: TypeAlias = tuple[int, int]


class MappedArena:
    """The part of an arena that does not depend on which process allots the blocks.

    Attributes:
        segment: the memory.
        number: ``handles.CLIENT_ARENA`` or ``handles.ENGINE_ARENA``.
        released: (offset, generation) of each tracked block whose last view has died.
        has_checksums: whether a block gets one when it is published, and readers compare it.
    """

    has_checksums = False

    def __init__(self, segment: Segment, number: int) -> None:
        self.segment, self.number = segment, number
        self.released: deque[Token] = deque()

    def open(
        self,
        block: Block,
        shape: Sequence[int],
        dtype: Any,
        *,
        writeable: bool,
        is_written: bool | None = None,
        track: bool = False,
    ) -> Array:
        """A C-contiguous array at the start of ``block``.

        Args:
            block: the block.
            shape: in elements.
            dtype: of the elements.
            writeable: whether this process may write into the block.
            is_written: whether the block was filled before, so that its header must have its
                generation; by default the opposite of ``writeable``.
            track: append to ``released`` when the last view of the result dies.

        Raises:
            ProtocolError: the array does not fit the block, or the block is stale.
        """
        if is_written is None:
            is_written = not writeable
        if not is_written:
            check_block(self.segment, block.offset, block.nbytes)
        else:
            written = check_header(self.segment, block.offset, block.generation)
            if block.nbytes > written:
                raise ProtocolError(
                    f"a handle of {block.nbytes} bytes at offset {block.offset} of "
                    f"{self.segment.name}, where a block of {written} bytes lies"
                )
        return view(
            self.segment,
            block.offset,
            shape,
            dtype,
            writeable=writeable,
            released=self.released if track else None,
            token=(block.offset, block.generation),
            bounds=(block.offset, block.offset + block.nbytes),
        )

    def open_strided(self, handle: TensorHandle) -> Array:
        """A read-only array over the elements that ``handle`` names; strides may be of any sign.

        Raises:
            ProtocolError: the block is stale, or an element would lie outside it.
        """
        start = handle.block_offset
        nbytes = check_header(self.segment, start, handle.generation)
        return view(
            self.segment,
            handle.offset,
            handle.shape,
            handle.dtype,
            handle.strides,
            writeable=False,
            released=None,
            token=(start, handle.generation),
            bounds=(start, start + nbytes),
        )

    def write_header(self, block: Block) -> None:
        """Write the header of ``block`` with its generation, so that others may read it.

        Raises:
            ProtocolError: the block does not lie in the segment.
        """
        checksum = self._checksum(block.offset, block.nbytes) if self.has_checksums else 0
        write_header(self.segment, block.offset, block.generation, block.nbytes, checksum)

    def check_bytes(self, block: Block) -> None:
        """Compare a published block with its checksum, if the arena has them.

        Raises:
            BytesCorrupted: the bytes have changed since they were published.
            ProtocolError: the block is stale.
        """
        if not self.has_checksums or block.arena != self.number:
            return
        nbytes = check_header(self.segment, block.offset, block.generation)
        wanted = _LAYOUT.unpack_from(self.segment.buffer, block.offset - HEADER_BYTES)[1]
        found = self._checksum(block.offset, nbytes)
        if wanted != found:
            raise BytesCorrupted(
                f"the {nbytes:,} bytes at offset {block.offset} of {self.segment.name} have "
                f"changed since a worker published them (checksum {wanted:08x} then, {found:08x} "
                "now): native code writes where it must not, or memory is broken"
            )

    def _checksum(self, offset: int, nbytes: int) -> int:
        """Of a block; never 0, which stands for none."""
        check_block(self.segment, offset, nbytes)
        return digest_of(np.frombuffer(self.segment.buffer, np.uint8, nbytes, offset)) or 1

    def locate(self, array: Array) -> tuple[int, int, int] | None:
        """Where ``array`` lies in this arena, or None if not all of it does.

        Returns:
            The offset of its first element, its block's offset, and its block's generation.
        """
        # Nearly always a plain view of all bytes of a lease; results of as_strided are none.
        memory = array.base
        owner: Any = memory.base if type(memory) is np.ndarray else None
        if (
            type(owner) is Lease
            and owner.segment is self.segment
            and array.nbytes == owner.stop - owner.start
            and array.flags.c_contiguous
        ):
            return (owner.start, *owner.token)
        lease = lease_of(array, self.segment)
        if lease is None:
            return None
        offset = array.__array_interface__["data"][0] - self.segment.address
        if array.flags.c_contiguous:
            low, high = offset, offset + array.nbytes
        else:
            low, high = byte_bounds(offset, array.shape, array.itemsize, array.strides)
        # as_strided can make an array that leaves the memory of its base.
        if low < lease.start or high > lease.stop:
            return None
        return (offset, *lease.token)

    def close(self) -> None:
        """Close the descriptor. Arrays stay valid; the last of them ends the mapping."""
        self.segment.close()


class ForeignArena(MappedArena):
    """An arena whose blocks another process allots.

    Args:
        fd: the descriptor of its segment, which the arena owns from now on.
        name: for error messages.
        number: the arena number in its handles.

    Raises:
        ProtocolError: the descriptor is not a sealed segment.
    """

    def __init__(self, fd: int, name: str = "foreign arena", *, number: int = ENGINE_ARENA) -> None:
        super().__init__(Segment.attach(fd, name), number)

    @classmethod
    def over(cls, segment: Segment, *, number: int = ENGINE_ARENA) -> ForeignArena:
        """One over a segment that this process has made, and which the arena owns from now on."""
        made = cls.__new__(cls)
        MappedArena.__init__(made, segment, number)
        return made


# ---------------------------------------------------------------------- arrays and their leases


class Lease:
    """The owner of a range of a segment for NumPy; it lives as long as any view of it.

    Attributes:
        segment: referenced, so that the mapping outlives every array over it.
        start, stop: the range, as offsets into the segment.
        token: appended to the ``released`` deque when the last view dies.
    """

    __slots__ = ("__array_interface__", "_release", "segment", "start", "stop", "token")

    def __init__(
        self,
        segment: Segment,
        start: int,
        stop: int,
        token: Token,
        released: deque[Token] | None,
        writeable: bool,
    ) -> None:
        self.segment, self.start, self.stop, self.token = segment, start, stop, token
        self._release: Callable[[Token], None] | None
        self._release = released.append if released is not None else None
        self.__array_interface__ = {
            "shape": (stop - start,),
            "typestr": "|u1",
            "data": (segment.address + start, not writeable),
            "version": 3,
        }

    def __del__(self) -> None:
        # Runs in any thread, inside the garbage collector, and during interpreter shutdown: it must
        # not lock, allocate from an arena, or look up a global. An append is atomic.
        if self._release is not None:
            self._release(self.token)


def view(
    segment: Segment,
    offset: int,
    shape: Sequence[int],
    dtype: Any,
    strides: Sequence[int] | None = None,
    *,
    writeable: bool,
    released: deque[Token] | None,
    token: Token,
    bounds: tuple[int, int] | None = None,
) -> Array:
    """An array over ``segment`` whose first element lies ``offset`` bytes from its start.

    Args:
        segment: the memory.
        offset: in bytes.
        shape: in elements.
        dtype: of the elements; Python objects cannot lie in shared memory.
        strides: in bytes, of any sign; None means C order.
        writeable: False yields an array that can never be made writable.
        released: gets ``token`` when the last view of the result dies; None: no notice.
        token: names the block for ``released`` and for ``locate``.
        bounds: the range [start, stop) that the elements must not leave; None: the segment.

    Raises:
        ProtocolError: any element would lie outside, or the dtype is refused.
    """
    try:
        dtype = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{dtype!r} is not a dtype") from error
    if dtype.hasobject:
        raise ProtocolError(f"arrays of {dtype} hold Python objects and cannot be shared")
    start, stop = byte_bounds(offset, shape, dtype.itemsize, strides)
    low, high = bounds or (0, segment.nbytes)
    if start < max(low, 0) or stop > min(high, segment.nbytes):
        raise ProtocolError(
            f"an array of shape {tuple(shape)}, strides {strides} and dtype {dtype} at offset "
            f"{offset} leaves the {high - low} bytes at offset {low} of {segment.name}"
        )
    lease = Lease(segment, start, stop, token, released, writeable)
    try:
        return np.ndarray(shape, dtype, np.asarray(lease), offset - start, strides)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"not an array layout: {error}") from error


def byte_bounds(
    offset: int, shape: Sequence[int], itemsize: int, strides: Sequence[int] | None
) -> tuple[int, int]:
    """The bytes [start, stop) that an array's elements cover; empty arrays cover none.

    Raises:
        ProtocolError: a dimension is negative, or there are not as many strides as dimensions.
    """
    count = math.prod(shape)
    if shape and min(shape) < 0:
        raise ProtocolError(f"negative dimension in shape {tuple(shape)}")
    if strides is None:
        return offset, offset + count * itemsize
    if len(strides) != len(shape):
        raise ProtocolError(f"strides {tuple(strides)} do not fit shape {tuple(shape)}")
    if not count:
        return offset, offset
    start = stop = offset
    for length, stride in zip(shape, strides, strict=True):
        reach = (length - 1) * stride
        if reach < 0:
            start += reach
        else:
            stop += reach
    return start, stop + itemsize


def lease_of(array: Array, segment: Segment) -> Lease | None:
    """The lease that keeps ``array``'s memory, if it lies in ``segment``; else None.

    Every view keeps its owner in ``base``, so no table of live blocks is searched.
    """
    base: Any = array.base
    while base is not None:
        if type(base) is Lease:
            return base if base.segment is segment else None
        base = getattr(base, "base", None)
    return None


# ---------------------------------------------------------------------- headers of blocks

MAGIC = 0x4752504D
# Magic, checksum (0: none), generation, bytes of payload asked for, version counter of the tensor.
_LAYOUT = struct.Struct("<IIQQQ")
pack_header = _LAYOUT.pack_into


def write_header(
    segment: Segment, offset: int, generation: int, nbytes: int, checksum: int = 0
) -> None:
    """Mark the block at ``offset`` as being in its use number ``generation``.

    Generation 0 marks a block that is free.

    Raises:
        ProtocolError: the block does not lie in the segment.
    """
    check_block(segment, offset, nbytes)
    pack_header(segment.buffer, offset - HEADER_BYTES, MAGIC, checksum, generation, nbytes, 0)


def check_header(segment: Segment, offset: int, generation: int) -> int:
    """Verify that the block at ``offset`` is in its use number ``generation``.

    Returns:
        The bytes of its payload.

    Raises:
        ProtocolError: no block lies there, or it has been freed or used again since.
    """
    if offset < HEADER_BYTES or offset % HEADER_BYTES or offset > segment.nbytes:
        raise _outside(segment, offset, 0)
    magic, _, found, nbytes, _ = _LAYOUT.unpack_from(segment.buffer, offset - HEADER_BYTES)
    if magic != MAGIC or found != generation:
        raise ProtocolError(
            f"stale handle: generation {generation} at offset {offset} of {segment.name}, "
            f"which holds generation {found if magic == MAGIC else 'none'}"
        )
    if offset + nbytes > segment.nbytes:
        raise _outside(segment, offset, nbytes)
    return nbytes


def check_block(segment: Segment, offset: int, nbytes: int) -> None:
    """Verify that a block of ``nbytes`` can lie at ``offset``.

    Raises:
        ProtocolError: it would leave the segment, or is not aligned.
    """
    if offset < HEADER_BYTES or offset % HEADER_BYTES or offset + nbytes > segment.nbytes:
        raise _outside(segment, offset, nbytes)


def _outside(segment: Segment, offset: int, nbytes: int) -> ProtocolError:
    return ProtocolError(
        f"no block of {nbytes} bytes can lie at offset {offset} of {segment.name}, "
        f"which has {segment.nbytes} bytes"
    )
