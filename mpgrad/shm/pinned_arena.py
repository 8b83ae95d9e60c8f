"""PinnedArena: host memory that GPUs copy from and to beside the host, for where IPC does not work.

A pinned page must stay where it is, so this memory is a segment of its own that is never punched;
each process pins its own mapping of it. One copy down and one copy up replace one handle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpgrad.errors import ProtocolError
from mpgrad.handles import Block
from mpgrad.shm.cuda_driver import DEVICE_TO_HOST, HOST_TO_DEVICE, CudaDriver
from mpgrad.shm.free_list import FreeList
from mpgrad.shm.segment import Segment


class PinnedArena:
    """One process's view of it.

    Args:
        driver: of this process.
        segment: shared with the other processes; it is pinned whole.
        number: the arena's number in its Blocks.
        is_owner: whether this process says where blocks lie.
    """

    def __init__(
        self, driver: CudaDriver, segment: Segment, number: int, *, is_owner: bool
    ) -> None:
        self._driver, self.segment, self.number = driver, segment, number
        # Pages first: pinning a hole would make them one at a time.
        segment.populate(0, segment.nbytes)
        driver.host_register(segment.address, segment.nbytes)
        self._free_list = (
            FreeList(segment.nbytes, segment.nbytes, "pinned arena") if is_owner else None
        )

    def put(self, array: Any, stream: Any) -> Block:
        """Copy a C-contiguous device array here, behind what is in ``stream``.

        Raises:
            SharedMemoryExhausted: it has no room.
            ValueError: this process does not own the arena.
        """
        if self._free_list is None:
            raise ValueError("only the owner of a pinned arena says where blocks lie")
        offset, generation = self._free_list.allocate(array.nbytes)
        self._driver.copy(
            self.segment.address + offset,
            self._driver.pointer(array),
            array.nbytes,
            DEVICE_TO_HOST,
            stream,
        )
        return Block(self.number, offset, array.nbytes, generation)

    def get(self, block: Block, target: Any, stream: Any) -> None:
        """Copy a block into a C-contiguous device array of its size, behind what is in ``stream``.

        Raises:
            ProtocolError: the block does not lie here, or is of another size.
        """
        end = block.offset + block.nbytes
        if block.offset < 0 or end > self.segment.nbytes or block.nbytes != target.nbytes:
            raise ProtocolError(f"{block} does not fit {target.nbytes} bytes of the pinned arena")
        self._driver.copy(
            self._driver.pointer(target),
            self.segment.address + block.offset,
            block.nbytes,
            HOST_TO_DEVICE,
            stream,
        )

    def free(self, block: Block) -> None:
        """Every copy from and to the block has run; only the owner says so."""
        if self._free_list is not None:
            self._free_list.free(block.offset)

    def view(self, block: Block, dtype: Any) -> np.ndarray[Any, Any]:
        """The bytes on the host."""
        itemsize = np.dtype(dtype).itemsize
        return np.frombuffer(self.segment.buffer, dtype, block.nbytes // itemsize, block.offset)

    def close(self) -> None:
        """Unpin; no copy may be under way."""
        self._driver.host_unregister(self.segment.address)
