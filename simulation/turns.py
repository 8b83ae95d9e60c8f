"""Turns: threads of which one runs at a time, as the world says; and the parts that run on them."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from mpgrad.distributed.autograd.dist_engine import DistEngine
from mpgrad.distributed.autograd.local_part import LocalPart


class Turns:
    """Threads that take turns with the world: while one runs, the world waits."""

    def __init__(self, function: Callable[[], None]) -> None:
        # Locks that the other side releases: a semaphore, and the start of a Thread, take longer.
        self._mine, self._worlds = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._worlds.acquire()
        self.is_over = False
        #: Whether it could go on.
        self.is_ready: Callable[[], bool] = lambda: True
        _thread.start_new_thread(self._run, (function,))

    def _run(self, function: Callable[[], None]) -> None:
        self._mine.acquire()
        _turns.of_this_thread = self
        try:
            function()
        finally:
            self.is_over = True
            self._worlds.release()

    def run_on(self) -> None:
        """Let the thread run until it gives its turn back."""
        self._mine.release()
        self._worlds.acquire()

    @staticmethod
    def of_this_thread() -> Turns:
        """Whose turn it is, on its thread."""
        return _turns.of_this_thread

    def give_back(self, is_ready: Callable[[], bool]) -> None:
        """On the thread: wait until the world lets it run again."""
        self.is_ready = is_ready
        self._worlds.release()
        self._mine.acquire()


class _OfThread(threading.local):
    of_this_thread: Turns


_turns = _OfThread()


class TurningPart(LocalPart):
    """A part whose thread gives its turn back where it would wait, and where it sends."""

    #: The message that it waits for; -1: none, or the host has been told.
    awaited = -1

    def _take(self, message: int) -> list[Any]:
        if not self._is_ready(message):
            self.awaited = message
            _turns.of_this_thread.give_back(lambda: self._is_ready(message))
            self.awaited = -1
        return super()._take(message)

    def send_gradients(self, node: Any, grads: list[Any]) -> None:
        super().send_gradients(node, grads)
        _turns.of_this_thread.give_back(lambda: True)


class TurningEngine(DistEngine):
    """Its parts run so."""

    part_class = TurningPart
