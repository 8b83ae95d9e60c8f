"""SessionPool: the engine's processes and the client's sessions with them.

Each calling thread borrows a session of its own. The first request starts the processes, and so
does the first one after a coordinator was lost.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.running.running_backward import innermost
from mpgrad.base.handles import Block, GradientRef, is_counted
from mpgrad.calls.initializing import Initializer
from mpgrad.engine.blas import let_idle_threads_sleep
from mpgrad.engine.coordinator_start import CoordinatorProcess
from mpgrad.engine.kernel_limits import FOR_SESSION, require_descriptors, require_same_user
from mpgrad.engine.session import Session
from mpgrad.errors import BytesCorrupted, CoordinatorLost, EngineClosed, add_note
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.tensors.storage import note_reader
from mpgrad.scheduler.tuning import measured_message_us

Array: TypeAlias = np.ndarray[Any, Any]

_CLOSED = (
    "the engine was closed by another thread while this one {did}. Make a new Engine, or close it "
    "when all threads are done."
)

#: So many backwards in this process, one after another, and results lie on the heap again.
IDLE_BACKWARDS = 8


class SessionPool:
    """Lends sessions to threads. Thread-safe.

    Args:
        spawn: starts a coordinator.
        on_start: is called with the cost of a message after processes have started.
        initializer: of the engine.

    Attributes:
        refused_frames: the number of refused messages from coordinators.
        is_closed: the engine was closed.
    """

    def __init__(
        self,
        spawn: Callable[[], CoordinatorProcess],
        on_start: Callable[[float], None],
        initializer: Initializer | None = None,
    ) -> None:
        self._spawn, self._on_start = spawn, on_start
        self.initializer = initializer
        self._lock = threading.RLock()
        self._coordinator: CoordinatorProcess | None = None
        #: Whether the cost of a message to this coordinator has been measured.
        self._is_measured = False
        #: Ends the processes if nobody can reach this pool any more.
        self._when_unreachable: weakref.finalize[..., SessionPool] | None = None
        #: The last coordinator whose workers were ready.
        self._started: CoordinatorProcess | None = None
        self._idle: list[Session] = []
        #: The backwards in this process since a session was borrowed.
        self._idle_backwards = 0
        self._session_numbers = itertools.count(1)
        #: Engine blocks with a view in this process: (offset, generation) -> sessions that hold it.
        self._leased: dict[tuple[int, int], tuple[Session, Block]] = {}
        #: The branches of workers that nobody will differentiate: slot, number; any thread appends.
        self.ended_branches: deque[tuple[int, int]] = deque()
        self.refused_frames = 0
        self.is_closed = False

    # ------------------------------------------------------------------ processes

    @property
    def is_running(self) -> bool:
        coordinator = self._coordinator
        return coordinator is not None and coordinator.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether a backward could begin at once, because the workers have started."""
        started = self._started
        return started is not None and started is self._coordinator and self.is_running

    @property
    def coordinator(self) -> CoordinatorProcess:
        """The running coordinator.

        Raises:
            EngineClosed: there is none any more.
        """
        coordinator = self._coordinator
        if coordinator is None:
            raise _closed()
        return coordinator

    @property
    def coordinator_pid(self) -> int | None:
        return self._coordinator.pid if self._coordinator is not None else None

    def start(
        self, spawned: CoordinatorProcess | None = None, *, in_background: bool = False
    ) -> None:
        """Start the processes if they are not running; returns when the workers are ready.

        Args:
            spawned: a coordinator that was started in advance.
            in_background: whether another thread runs a backward meanwhile. It holds the GIL for
                up to 5 ms at a time, so the first borrowed session measures the messages.

        Raises:
            EngineClosed: the workers cannot be started; the message says why.
        """
        with self._lock:
            if self.is_closed:
                raise _closed()
            if self.is_running:
                if spawned is not None:
                    spawned.discard()
                return
            self._end()
            if spawned is None:
                spawned = self._spawn()
            self._coordinator = spawned
            self._when_unreachable = weakref.finalize(
                self, _end_unreachable, spawned, self._idle, id(self), os.getpid()
            )
            self._when_unreachable.atexit = False
            self._note_use()
            let_idle_threads_sleep()
            try:
                session = self._open_session()
                self._is_measured = False
                if not in_background:
                    self._measure(session)
                self._idle.append(session)
                self._started = spawned
            except BaseException:
                self._end(by_force=True)
                raise

    def _measure(self, session: Session) -> None:
        self._is_measured = True
        self._on_start(measured_message_us(session.round_trip_us()))

    def _note_use(self) -> None:
        self._idle_backwards = 0
        note_reader(id(self), reads=True)

    def note_idle(self) -> None:
        """A backward has run in this process, though there may be workers: results need not lie in
        the arena if that goes on."""
        self._idle_backwards += 1
        if self._idle_backwards == IDLE_BACKWARDS:
            note_reader(id(self), reads=False)

    def close(self) -> None:
        """End all processes; views of their results stay readable.

        A backward that another thread is waiting for raises EngineClosed there.
        """
        self.is_closed = True
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.is_closed = True
            if coordinator is not self._started:
                coordinator.kill()  # a thread that holds the lock may wait for its start
        with self._lock:
            self._end()

    def forget(self, coordinator: CoordinatorProcess | None) -> None:
        """End a coordinator that is of no use any more."""
        with self._lock:
            if coordinator is self._coordinator:
                self._end(by_force=True)

    def _end(self, *, by_force: bool = False) -> None:
        with self._lock:
            coordinator, self._coordinator = self._coordinator, None
            self._started = None
            if coordinator is None:
                return
            self._need_no_end()
            note_reader(id(self), reads=False)
            if by_force or not self._idle:
                coordinator.kill()
            else:
                self._idle[0].stop_engine()
            _wait_and_close(coordinator, self._idle)
            self._leased.clear()

    def _need_no_end(self) -> None:
        """Nothing has to be ended any more, or not by this process."""
        if self._when_unreachable is not None:
            self._when_unreachable.detach()

    def abandon(self) -> None:
        """Drop everything without touching it: this is a forked child."""
        note_reader(id(self), reads=False)
        self._need_no_end()
        self._coordinator = self._started = None
        self._idle.clear()
        self._leased.clear()

    # ------------------------------------------------------------------ sessions

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Borrow a session; a broken one is not returned to the pool.

        An inner backward shares the session of the outer one, whose thread waits for it anyway: so
        thousands of nested ones need no more sockets than one.
        """
        running = innermost()
        outer = running.session if running is not None else None
        if outer is not None and outer[0] is self:
            yield outer[1]
            return
        with self._lock:
            self.start()
            coordinator = self._coordinator
            session = self._idle.pop() if self._idle else self._open_session()
            self._note_use()
            self._collect_released()
            if not self._is_measured:
                self._measure(session)
        if running is not None:
            running.session = (self, session)
        try:
            yield session
        except (CoordinatorLost, EngineClosed):
            session.close()
            self.forget(coordinator)
            raise
        except BaseException:
            self._give_back(session, coordinator)
            raise
        finally:
            if running is not None:
                running.session = outer
        self._give_back(session, coordinator)

    def _open_session(self) -> Session:
        coordinator = self.coordinator
        require_descriptors(FOR_SESSION, "another thread that calls backward()")
        require_same_user(coordinator.user)
        peer = f"c{os.getpid()}.{next(self._session_numbers)}"
        return Session(coordinator, peer, ended_branches=self.ended_branches)

    def _give_back(self, session: Session, coordinator: CoordinatorProcess | None) -> None:
        with self._lock:
            self.refused_frames += session.refused_frames
            session.refused_frames = 0
            if coordinator is self._coordinator:
                self._idle.append(session)
            else:
                session.close()

    # ------------------------------------------------------------------ leases

    def require_intact(
        self, session: Session, refs: Sequence[GradientRef], name: Callable[[int], str]
    ) -> None:
        """Compare results with their checksums, if the engine has them, before any is opened.

        Args:
            session: it holds them, and lets go of all if one has changed.
            refs: the results.
            name: of a result by its number, for the error.

        Raises:
            BytesCorrupted: the bytes of one have changed.
        """
        arena = session.coordinator.arena
        if not arena.has_checksums:
            return
        held = [ref for ref in refs if is_counted(ref)]
        for number, ref in enumerate(refs):
            try:
                if isinstance(ref, Block):
                    arena.check_bytes(ref)
            except BytesCorrupted as error:
                session.to_release.extend(held)
                add_note(error, f"it is {name(number)}, which this process reads")
                raise

    def lease(self, session: Session, block: Block, meta: InputMetadata) -> Array:
        """A result in the engine's arena, which ``session`` holds until its last view dies."""
        arena = session.coordinator.arena
        self._leased[block.offset, block.generation] = (session, block)
        return arena.open(
            block, meta.shape, meta.dtype, writeable=True, is_written=True, track=True
        )

    def _collect_released(self) -> None:
        """Return blocks whose last view has died to the sessions that hold them."""
        if self._coordinator is None:
            return
        released = self._coordinator.arena.released
        while released:
            session, block = self._leased.pop(released.popleft(), (None, None))
            if session is not None and block is not None:
                session.to_release.append(block)
        for idle in self._idle:
            idle.send_releases()


def _closed() -> EngineClosed:
    is_backward = innermost() is not None
    did = "was in backward(); no .grad was changed" if is_backward else "was about to use it"
    return EngineClosed(_CLOSED.format(did=did))


def _wait_and_close(coordinator: CoordinatorProcess, idle: list[Session]) -> None:
    """Wait for the end of a coordinator, and close what this process has of it."""
    coordinator.wait()
    for session in idle:
        session.close()
    idle.clear()


def _end_unreachable(
    coordinator: CoordinatorProcess, idle: list[Session], pool: int, client: int
) -> None:
    """End the processes of a pool that nobody can reach any more.

    The garbage collector runs this, on any thread and at any place of it. So it takes no lock and
    waits for nothing: another thread does. That is no ``threading.Thread``, whose start takes a
    lock.

    Args:
        coordinator, idle: of the pool.
        pool: its ``id``.
        client: the process that has started the coordinator; a forked child ends nothing.
    """
    if os.getpid() != client:
        return
    note_reader(pool, reads=False)
    coordinator.let_go()  # it ends its workers, and then itself
    with contextlib.suppress(RuntimeError):  # no thread can be started any more
        _thread.start_new_thread(_wait_and_close, (coordinator, idle))
