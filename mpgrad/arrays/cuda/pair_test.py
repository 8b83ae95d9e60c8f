"""PairTest: the self-test of two processes: can one read the other's memory, in order?

The abilities that CUDA reports may differ from those that a container, a driver or a virtual
machine allows. So two processes test them once before they rely on them. If the test fails, they
use pinned host memory and report the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.cuda_driver import DEVICE_TO_DEVICE, CudaDriver, CudaError
from mpgrad.arrays.cuda.cuda_export import Exporter, NotExportable, SegmentOffer
from mpgrad.arrays.cuda.cuda_import import Importer
from mpgrad.arrays.cuda.segment_pool import SegmentPlace

#: Elements of the pattern, int32: more than a page, so that a copy takes a moment.
PATTERN_ELEMENTS = 1 << 16


class Question(NamedTuple):
    """The message of the exporter.

    Attributes:
        offer: the segment.
        place: the place of the pattern in it.
        event: the handle of the event after the copy of the pattern.
        seed: the start of the pattern.
    """

    offer: SegmentOffer
    place: SegmentPlace
    event: bytes
    seed: int


class Answer(NamedTuple):
    """The result of the importer; ``reason`` is empty on success."""

    peer: str
    reason: str

    @property
    def works(self) -> bool:
        return not self.reason


class PairTest:
    """The exporter's part; keep it until the answer has come.

    Raises:
        NotExportable: this process can make no handle.
    """

    def __init__(self, driver: CudaDriver, exporter: Exporter, to: str, seed: int) -> None:
        pattern = _pattern(seed)
        source, self._source = exporter.allocate(pattern.nbytes)
        target, self._target = exporter.allocate(pattern.nbytes)
        for lease in (self._source, self._target):
            exporter.set_aside(lease, pattern.nbytes)
        driver.array(source, pattern.shape, pattern.dtype).set(pattern)
        driver.synchronize()
        place = exporter.locate(target, pattern.nbytes)
        if place is None:
            raise NotExportable("what was just allocated does not lie in a segment")
        try:
            self._event: Any = driver.event(interprocess=True)
            handle = driver.ipc_event_handle(self._event)
        except CudaError as error:
            raise NotExportable(f"{exporter.peer} cannot export an event: {error}") from error
        stream = driver.stream()
        driver.copy(target, source, pattern.nbytes, DEVICE_TO_DEVICE, stream)
        self._event.record(stream)
        self.question = Question(exporter.offer(place.segment, to), place, handle, seed)

    def close(self) -> None:
        """Wait for the copy in any case: the memory may be used again after this."""
        self._event.synchronize()


def answer(
    driver: CudaDriver,
    importer: Importer,
    peer: str,
    question: Question,
    wait: Callable[[Any], None] = lambda event: event.synchronize(),
) -> Answer:
    """The importer's part: open, wait for the event, compare. It never raises.

    Args:
        driver: of this process.
        importer: of this process.
        peer: the name of this process.
        question: the message of the exporter.
        wait: blocks until an event is done. It waits on the host, so that this process's streams
            do not break if the other one dies.
    """
    pattern = _pattern(question.seed)
    offer, place = question.offer, question.place
    try:
        importer.open(offer)
        event = driver.open_ipc_event(question.event)
        wait(event)
        driver.current_stream().wait_event(event)
        array = importer.array(
            offer.exporter, offer.device, place, pattern.shape, pattern.dtype, pattern.nbytes
        )
        if not np.array_equal(array.get(), pattern):
            return Answer(peer, "the bytes that arrived are not those that were written")
    except Exception as error:  # after any error, pinned host memory is used
        return Answer(peer, f"{type(error).__name__}: {error}")
    return Answer(peer, "")


def _pattern(seed: int) -> np.ndarray[Any, Any]:
    return np.arange(seed, seed + PATTERN_ELEMENTS, dtype=np.int32)
