"""MappedArena: arrays over the blocks of a segment, and the block of an array.

It knows arrays and handles, not tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.base.handles import ENGINE_ARENA, Block, TensorHandle
from mpgrad.errors import ProtocolError
from mpgrad.shm.header import check_block, check_header, write_header
from mpgrad.shm.lease import Array, Token, byte_bounds, lease_of, view
from mpgrad.shm.segment import Segment


class MappedArena:
    """The part of an arena that does not depend on which process allots the blocks.

    Attributes:
        segment: the memory.
        number: ``handles.CLIENT_ARENA`` or ``handles.ENGINE_ARENA``.
        released: (offset, generation) of each tracked block whose last view has died.
    """

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
        write_header(self.segment, block.offset, block.generation, block.nbytes)

    def locate(self, array: Array) -> tuple[int, int, int] | None:
        """Where ``array`` lies in this arena, or None if not all of it does.

        Returns:
            The offset of its first element, its block's offset, and its block's generation.
        """
        lease = lease_of(array, self.segment)
        if lease is None:
            return None
        # A plain view of all bytes of the lease; results of as_strided are none.
        memory = array.base
        owner: Any = memory.base if type(memory) is np.ndarray else None
        if owner is lease and array.nbytes == lease.stop - lease.start and array.flags.c_contiguous:
            return (lease.start, *lease.token)
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
