"""Importer: the device memory of other processes that this process has open.

CUDA opens a handle once in a process, never in the process that exported it, and closes it only in
a thread with the device's context. This file keeps these three rules.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpgrad.arrays.cuda.cuda_driver import CudaDriver
from mpgrad.arrays.cuda.cuda_export import Exporter, NotExportable, SegmentOffer
from mpgrad.arrays.cuda.segment_pool import SegmentPlace
from mpgrad.errors import InvariantViolated


class _Use:
    """Keeps a segment open for the arrays over it."""

    __slots__ = ("_key", "_release")

    def __init__(self, key: tuple[str, int], release: Callable[[tuple[str, int]], None]) -> None:
        self._key, self._release = key, release

    def __del__(self) -> None:
        self._release(self._key)


class _Opened(NamedTuple):
    pointer: int
    nbytes: int
    device: int


class Importer:
    """Segments of other processes that are open here.

    Args:
        driver: of this process.
        own: this process's exporters, by device, for references that come back.
        is_bound: whether it belongs to the thread that made it. (The threads of a program share
            their contexts; a worker has one device thread.)
    """

    def __init__(
        self, driver: CudaDriver, own: Sequence[Exporter] = (), *, is_bound: bool = True
    ) -> None:
        self._driver, self._own = driver, {exporter.device: exporter for exporter in own}
        self._own_names = {exporter.peer for exporter in own}
        self._opened: dict[tuple[str, int], _Opened] = {}
        self._uses: Counter[tuple[str, int]] = Counter()
        self._ended: deque[tuple[str, int]] = deque()
        self._closing: set[tuple[str, int]] = set()
        # CUDA closes a handle only in the thread whose context opened it.
        self._thread = threading.get_ident() if is_bound else None

    def open(self, offer: SegmentOffer) -> None:
        """Map a segment, unless it is open here or this process's own.

        Raises:
            InvariantViolated: another thread calls, or two segments have the name.
            CudaError: CUDA refuses.
        """
        self._check_thread()
        key = (offer.exporter, offer.segment)
        if offer.exporter in self._own_names:
            return
        known = self._opened.get(key)
        if known is None:
            with self._driver.device(offer.device):
                pointer = self._driver.open_ipc_memory(offer.handle)
            self._opened[key] = _Opened(pointer, offer.nbytes, offer.device)
        elif known[1:] != (offer.nbytes, offer.device) or key in self._closing:
            raise InvariantViolated(f"segment {offer.segment} of {offer.exporter} is offered anew")

    def array(
        self,
        exporter: str,
        device: int,
        place: SegmentPlace,
        shape: Sequence[int],
        dtype: Any,
        nbytes: int,
    ) -> Any:
        """A C-contiguous array over exported memory of another process (or of this one).

        Raises:
            NotExportable: the segment is not open here, or the array leaves it.
        """
        pointer, use = self.pointer(exporter, device, place, nbytes)
        return self._driver.array(pointer, shape, dtype, owner=use)

    def pointer(
        self, exporter: str, device: int, place: SegmentPlace, nbytes: int
    ) -> tuple[int, Any]:
        """The address of ``nbytes`` of that memory, and the object that keeps the segment open.

        Raises:
            NotExportable: as for ``array``.
        """
        if exporter in self._own_names:
            return self._own[device].address(place), None
        key = (exporter, place.segment)
        opened = self._opened.get(key)
        if opened is None or key in self._closing:
            raise NotExportable(f"segment {place.segment} of {exporter} is not open here")
        if place.offset < 0 or place.offset + nbytes > opened.nbytes:
            raise NotExportable(f"{nbytes} bytes at {place} leave the segment of {exporter}")
        self._uses[key] += 1
        return opened.pointer + place.offset, _Use(key, self._ended.append)

    def retire(self, exporter: str, segment: int) -> None:
        """The exporter wants a segment back: :meth:`close_retired` closes it when it is unused."""
        key = (exporter, segment)
        if key not in self._opened:
            raise InvariantViolated(f"segment {segment} of {exporter} is not open here")
        self._closing.add(key)

    def exporter_lost(self, exporter: str) -> None:
        """An exporter died: close its segments when they are unused, and open no others."""
        self._closing.update(key for key in self._opened if key[0] == exporter)

    def close_retired(self) -> list[tuple[str, int]]:
        """Close the retired segments without uses.

        Returns:
            (exporter, segment) of each, to be acknowledged.
        """
        self._check_thread()
        if not self._closing:
            return []
        while self._ended:
            self._uses[self._ended.popleft()] -= 1
        ready = sorted(key for key in self._closing if not self._uses[key])
        for key in ready:
            opened = self._opened.pop(key)
            self._closing.discard(key)
            self._uses.pop(key, None)
            with self._driver.device(opened.device):
                # Work in a stream may still read an array that was freed.
                self._driver.synchronize()
                self._driver.close_ipc_memory(opened.pointer)
        return ready

    def opened(self) -> list[tuple[str, int]]:
        """(exporter, segment) of each that is open."""
        return list(self._opened)

    @property
    def open_count(self) -> int:
        """Segments that are open."""
        return len(self._opened)

    def _check_thread(self) -> None:
        if self._thread not in (None, threading.get_ident()):
            raise InvariantViolated("only its device thread may open and close device memory")
