"""Streams and events of the fake CUDA driver, within one process and between processes.

A real GPU runs what is put into a stream some time later. This one runs it as late as the rules
allow: when somebody waits for it. Whoever forgets to wait reads the old bytes, every time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpgrad.arrays.cuda.cuda_driver import IPC_HANDLE_BYTES, CudaError
from mpgrad.shm.segment import Segment

_HANDLE = struct.Struct("<4sIII16s16s")
_MAGIC = b"FEVT"
#: Interprocess events that one process can make; none is used again.
_EVENTS_MAX, _COUNTERS_BYTES = 4096, 16
_REQUEST = struct.Struct("<16scQ")
_RUN, _STEP = b"r", b"s"
_DONE, _DESTROYED = b"+", b"!"


class Operation(NamedTuple):
    """What waits in a stream.

    Attributes:
        run: does it.
        touches: (address, bytes) of the device memory that it reads or writes.
    """

    run: Callable[[], object]
    touches: tuple[tuple[int, int], ...] = ()


#: Held while a thread takes or gives back a stream; told whenever an operation has run.
_turns = threading.Condition()


class FakeStream:
    """See ``shm.cuda_driver.Stream``; ``ptr`` tells streams apart, as CuPy's does.

    Any thread may run a stream, one at a time. Who waits for one that another thread runs waits
    only until what he needs has run: the thread may by then be at a later operation, which waits
    for *his* stream. So no cycle arises that a GPU would not have.
    """

    def __init__(self, driver: Any, device: int) -> None:
        self.device, self.ptr = device, id(self)
        self._driver = driver
        self._pending: deque[Operation] = deque()
        #: The thread that runs an operation.
        self._runner: int | None = None
        self._entered: list[Any] = []

    def __enter__(self) -> FakeStream:
        self._entered.append(self._driver.use_stream(self.device, self))
        return self

    def __exit__(self, *exception: object) -> None:
        self._driver.use_stream(self.device, self._entered.pop())

    @property
    def queue(self) -> FakeStream:
        """Where what is asked of this stream goes."""
        return self

    @property
    def done(self) -> bool:
        return not self.step()

    def put(self, operation: Operation) -> None:
        """Let it run after all that is here."""
        self._pending.append(operation)

    def step(self) -> bool:
        """Run one operation, as the GPU does while the host looks away; whether any is left."""
        return self.advance(lambda: False)

    def synchronize(self) -> None:
        while self.step():
            pass

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Run operations until ``is_done``, or none is left."""
        while not is_done() and self.advance(is_done):
            pass

    def advance(self, is_done: Callable[[], bool]) -> bool:
        """Let one operation run unless ``is_done``, perhaps in another thread; whether any is left.

        Raises:
            CudaError: an operation of this stream waits for a later one.
        """
        with _turns:
            while self._runner is not None and not is_done():
                if self._runner == threading.get_ident():
                    raise CudaError("undefined behaviour", "a stream waits for itself")
                _turns.wait()
            if not self._pending or is_done():
                return bool(self._pending)
            self._runner = threading.get_ident()
        try:
            self._pending[0].run()
            # Only when it has run is it gone: others look whether it is still to come.
            self._pending.popleft()
            return bool(self._pending)
        finally:
            with _turns:
                self._runner = None
                _turns.notify_all()

    def touches(self, address: int, nbytes: int) -> bool:
        """Whether something that has not run yet reads or writes these bytes."""
        return any(
            start < address + nbytes and address < start + length
            for operation in list(self._pending)
            for start, length in operation.touches
        )

    def wait_event(self, event: FakeEvent | OpenedEvent) -> None:
        recorded = event.recorded
        if recorded:
            self.put(Operation(lambda: event.wait_for(recorded)))

    def record(self, event: FakeEvent) -> FakeEvent:
        event.record(self)
        return event


class DefaultStream:
    """The default stream, whose number is 0 on every device: that of the *current* one is meant."""

    ptr = 0

    def __init__(self, driver: Any, streams: Sequence[FakeStream]) -> None:
        self._driver, self._streams = driver, streams

    @property
    def queue(self) -> FakeStream:
        """That of the current device."""
        return self._streams[self._driver.current_device()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


class EventCounters:
    """Shared memory with the counters of a process's interprocess events."""

    def __init__(self) -> None:
        self.segment = Segment.create(_EVENTS_MAX * _COUNTERS_BYTES, "fake-cuda-events")
        self._made = 0

    def new(self) -> tuple[int, np.ndarray[Any, Any]]:
        """The number of a new event, and its counters."""
        if self._made == _EVENTS_MAX:
            raise CudaError("cudaErrorMemoryAllocation", "no more interprocess events")
        self._made += 1
        return self._made - 1, _counters(self.segment, self._made - 1)


class FakeEvent:
    """See ``shm.cuda_driver.Event``.

    Args:
        driver: whose current stream is meant where none is named.
        device: where it is recorded.
        shared: where its counters lie if other processes may open it.
    """

    def __init__(self, driver: Any, device: int, shared: EventCounters | None = None) -> None:
        self._driver, self.device, self._shared = driver, device, shared
        #: How often it was recorded, and which of these records the stream has reached.
        self._counters: np.ndarray[Any, Any] = np.zeros(2, np.uint64)
        self._number = 0
        if shared is not None:
            self._number, self._counters = shared.new()
        self._streams: dict[int, FakeStream] = {}
        self.token = secrets.token_bytes(16)

    @property
    def recorded(self) -> int:
        return int(self._counters[0])

    @property
    def done(self) -> bool:
        stream = self._streams.get(self.recorded)
        if not self._has_reached(self.recorded) and stream is not None:
            self.step(self.recorded)
        return self._has_reached(self.recorded)

    def record(self, stream: FakeStream | DefaultStream | None = None) -> None:
        queue = (self._driver.current_stream() if stream is None else stream).queue
        if queue.device != self.device:
            raise CudaError("cudaErrorInvalidResourceHandle", "event and stream on two devices")
        number = self.recorded + 1
        self._streams[number] = queue
        self._counters[0] = number
        # Without ``self``: an event may die before its record has run.
        queue.put(Operation(functools.partial(_reach, self._counters, self._streams, number)))

    def synchronize(self) -> None:
        self.wait_for(self.recorded)

    def wait_for(self, number: int) -> None:
        """Run its stream up to the record of that number."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.run_until(lambda: self._has_reached(number))

    def step(self, number: int) -> None:
        """Run one operation towards the record of that number."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.advance(lambda: self._has_reached(number))

    def handle(self, service: bytes) -> bytes:
        """What OpenedEvent opens it by; ``service`` is where the process listens."""
        if self._shared is None:
            raise CudaError("cudaErrorInvalidResourceHandle", "not an interprocess event")
        where = (os.getpid(), self._shared.segment.fd, self._number)
        packed = _HANDLE.pack(_MAGIC, *where, service, self.token)
        return packed.ljust(IPC_HANDLE_BYTES, b"\0")

    def _has_reached(self, number: int) -> bool:
        return int(self._counters[1]) >= number


class OpenedEvent:
    """Another process's event."""

    def __init__(self, handle: bytes) -> None:
        fields = _HANDLE.unpack(handle[: _HANDLE.size])
        magic, self._pid, fd, number, self._service, self._token = fields
        if len(handle) != IPC_HANDLE_BYTES or magic != _MAGIC:
            raise CudaError("cudaErrorInvalidValue", "no handle of an event")
        if self._pid == os.getpid():
            raise CudaError("cudaErrorDeviceUninitialized", "the exporter's own handle")
        try:
            descriptor = os.open(f"/proc/{self._pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
            segment = Segment.attach(descriptor, "fake-cuda-events")
            self._counters = _counters(segment, number)
            segment.close()  # the mapping is enough
        except (OSError, RuntimeError) as error:
            raise CudaError("cudaErrorInvalidResourceHandle", str(error)) from error

    @property
    def recorded(self) -> int:
        return int(self._counters[0])

    @property
    def done(self) -> bool:
        if int(self._counters[1]) < self.recorded:
            self._ask(_STEP, self.recorded)
        return int(self._counters[1]) >= self.recorded

    def synchronize(self) -> None:
        self.wait_for(self.recorded)

    def wait_for(self, number: int) -> None:
        """Block until its process has run the stream up to the record of that number."""
        if int(self._counters[1]) < number:
            self._ask(_RUN, number)

    def _ask(self, what: bytes, number: int) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(_address(self._pid, self._service))
                connection.sendall(_REQUEST.pack(self._token, what, number))
                answer = connection.recv(1)
        except OSError:
            answer = b""
        if answer == _DESTROYED:
            raise CudaError("undefined behaviour", "the event was destroyed by its process")
        if answer != _DONE:
            raise CudaError("cudaErrorIllegalAddress", f"process {self._pid} is gone")


class EventService:
    """Runs this process's streams for the processes that wait for its events."""

    def __init__(self) -> None:
        self.name = secrets.token_bytes(16)
        self._events: weakref.WeakValueDictionary[bytes, FakeEvent] = weakref.WeakValueDictionary()
        self._socket = socket.socket(socket.AF_UNIX)
        # An abstract address: no file, and gone with the process.
        self._socket.bind(_address(os.getpid(), self.name))
        self._socket.listen(128)
        threading.Thread(target=self._accept, name="mpgrad-fake-cuda", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def export(self, event: FakeEvent) -> bytes:
        """The handle of ``event``, from now on served."""
        self._events[event.token] = event
        return event.handle(self.name)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            # One each: an operation may wait for another process, which waits for another stream.
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # Who asks may be killed while it waits.
        with connection, contextlib.suppress(OSError, struct.error):
            token, what, number = _REQUEST.unpack(
                connection.recv(_REQUEST.size, socket.MSG_WAITALL)
            )
            event = self._events.get(token)
            if event is None:
                connection.sendall(_DESTROYED)
                return
            try:
                if what == _RUN:
                    event.wait_for(number)
                else:
                    event.step(number)
            except CudaError:
                return  # what this process waits for is gone, and so it will not get there
            connection.sendall(_DONE)


def _reach(counters: Any, streams: dict[int, FakeStream], number: int) -> None:
    counters[1] = max(number, int(counters[1]))
    streams.pop(number, None)


def _address(pid: int, service: bytes) -> bytes:
    return b"\0mpgrad-fake-cuda-%d-%s" % (pid, service.hex().encode())


def _counters(segment: Segment, number: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(segment.buffer, np.uint64, 2, number * _COUNTERS_BYTES)
