"""PinnedArena: pinned host memory for asynchronous copies between GPUs if IPC does not work.

Each process that exports device memory has a range of the shared segment, and decides where blocks
lie in it; the others read them. Pinned pages stay where they are, so nothing is punched. Each
process pins its own mapping, piece by piece as it needs them: most never need any. One copy to the
host and one from the host replace one handle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpgrad.arrays.cuda.cuda_driver import DEVICE_TO_HOST, HOST_TO_DEVICE, CudaDriver
from mpgrad.errors import ProtocolError
from mpgrad.shm.free_list import FreeList
from mpgrad.shm.segment import Segment

#: The bytes that are pinned at once. CUDA refuses a copy that touches two pinned pieces.
PIECE_BYTES = 16 << 20


class PinnedArena:
    """One process's view of one range.

    Args:
        driver: of this process.
        segment: shared with the other processes.
        start: the start of the range in it.
        nbytes: the length of the range.
        is_owner: whether this process decides where blocks lie.
    """

    def __init__(
        self, driver: CudaDriver, segment: Segment, start: int, nbytes: int, *, is_owner: bool
    ) -> None:
        self._driver, self._segment, self._start, self._nbytes = driver, segment, start, nbytes
        self._pinned: dict[int, int] = {}
        self._free_list = FreeList(nbytes, nbytes, "pinned arena") if is_owner else None

    def put(self, pointer: int, nbytes: int, stream: Any) -> int:
        """Copy device memory to the host, after the work of ``stream``; return the offset.

        Raises:
            SharedMemoryExhausted: the range has no room.
            ValueError: this process does not own the range.
        """
        if self._free_list is None:
            raise ValueError("only the owner of a pinned arena decides where blocks lie")
        offset, _generation = self._free_list.allocate(nbytes)
        for address, at, length in self._pieces(offset, nbytes):
            self._driver.copy(address, pointer + at, length, DEVICE_TO_HOST, stream)
        return offset

    def get(self, offset: int, pointer: int, nbytes: int, stream: Any) -> None:
        """Copy bytes of the range to device memory, after the work of ``stream``.

        Raises:
            ProtocolError: they do not lie in the range.
        """
        if not 0 <= offset <= offset + nbytes <= self._nbytes:
            raise ProtocolError(f"{nbytes} bytes at {offset} do not fit the pinned arena")
        for address, at, length in self._pieces(offset, nbytes):
            self._driver.copy(pointer + at, address, length, HOST_TO_DEVICE, stream)

    def free(self, offset: int) -> None:
        """Free a block after every copy from and to it has run; only the owner calls this."""
        if self._free_list is not None:
            self._free_list.free(offset)

    def close(self) -> None:
        """Unpin the memory; no copy may be running."""
        for address in self._pinned.values():
            self._driver.host_unregister(address)
        self._pinned.clear()

    def _pieces(self, offset: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """Each pinned piece of that range: its address, its place in the range, its length."""
        at = 0
        while at < nbytes:
            piece, inside = divmod(offset + at, PIECE_BYTES)
            length = min(nbytes - at, PIECE_BYTES - inside)
            yield self._pin(piece) + inside, at, length
            at += length

    def _pin(self, piece: int) -> int:
        if piece not in self._pinned:
            start = self._start + piece * PIECE_BYTES
            nbytes = min(PIECE_BYTES, self._nbytes - piece * PIECE_BYTES)
            # The pages first: pinning a hole would make them one at a time.
            self._segment.populate(start, nbytes)
            self._driver.host_register(self._segment.address + start, nbytes)
            self._pinned[piece] = self._segment.address + start
        return self._pinned[piece]
