"""HostInUse: what HostCalls knows of one host."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mpgrad.engine.calls_in_workers import Answered
from mpgrad.engine.cluster.host_contract import RemoteHost, Reply
from mpgrad.engine.cluster.host_tasks import HostArrays
from mpgrad.engine.submitter import Submission
from mpgrad.errors import MpgradError
from mpgrad.shm.arena import client_arena
from mpgrad.shm.hosts_board import HostFigures
from mpgrad.wire.programs import CallAnswer
from mpgrad.wire.remote_error import decode_error

#: The place of a branch: the number of its host times this, plus the slot of its worker.
SLOTS = 1 << 20
#: The messages that a host has, and the calls for each of its workers, if these are more.
AHEAD = 2

_answers = msgspec.msgpack.Decoder(CallAnswer)


@dataclass(eq=False)
class HostInUse:
    """A host as HostCalls knows it."""

    number: int
    remote: RemoteHost
    #: What it has done, with what another actor had done on its node.
    figures: HostFigures
    workers: int = 0
    #: The calls of each task that it runs, and the arrays that they use; how many calls these are.
    tasks: dict[int, tuple[list[Submission], list[bytes]]] = field(default_factory=dict)
    calls: int = 0
    #: The calls that need a branch of it, and have not been sent.
    waiting: deque[Submission] = field(default_factory=deque)
    arrays: HostArrays = field(default_factory=HostArrays)
    #: The numbers of branches that nobody needs any more.
    released: list[int] = field(default_factory=list)
    is_lost: bool = False
    #: When it was asked whether it lives, and has not answered since.
    asked_at: float | None = None

    @property
    def is_free(self) -> bool:
        """Whether it is to get more calls."""
        few = len(self.tasks) < AHEAD or self.calls < AHEAD * self.workers
        return few and self.workers > 0

    def opened(self, reply: Reply | BaseException) -> Answered | BaseException:
        """What a call has given, in this process's memory; or why there is none."""
        if isinstance(reply, BaseException):
            return reply
        if isinstance(reply, bytes):
            return decode_error(reply)
        told, data, took_us = reply
        self.figures.calls += 1
        self.figures.received_bytes += len(told) + (0 if data is None else data.nbytes)
        answer = _answers.decode(told)
        answer = msgspec.structs.replace(answer, slot=self.number * SLOTS + answer.slot)
        if data is not None:
            try:
                copy = client_arena().empty(data.shape, np.uint8)
            except (MpgradError, OSError) as error:
                return error
            copy[:] = data  # what came cannot be written
            data = copy
        return Answered(answer, data, took_us)
