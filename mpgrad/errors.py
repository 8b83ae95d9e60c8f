"""The exceptions that mpgrad itself raises; misuse raises what PyTorch raises.

This file knows no other part of the package.
"""

from __future__ import annotations

import contextlib


class MpgradError(RuntimeError):
    """Base of every error that the executor raises on its own behalf."""


class PerformanceWarning(UserWarning):
    """Something runs slower than it could; the text says what to do."""


class WorkerLost(MpgradError):
    """A worker process died while it ran a NodeTask, and the task may not be retried again."""


class TaskTimedOut(WorkerLost, TimeoutError):
    """A NodeTask took longer than ``Engine(task_timeout=...)`` allows, also when it was retried."""


class CoordinatorLost(MpgradError):
    """The coordinator process died; the engine is started again by the next call.

    Attributes:
        has_run_user_code: hooks or Functions of the backward had already run in this process.
    """

    has_run_user_code = False


class HostLost(MpgradError):
    """A rank of a process group died, cannot be reached, or left while others waited for it.

    Attributes:
        rank: the one that is lost.
        cause: what was seen of it.
    """

    def __init__(self, rank: int, cause: str, during: str = "") -> None:
        self.rank, self.cause, self.during = rank, cause, during
        what = f"{during}: " if during else ""
        super().__init__(
            f"{what}rank {rank} is lost: {cause}. Its groups cannot go on without it: start all "
            "ranks again."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.rank, self.cause, self.during))


class RendezvousTimeout(MpgradError, TimeoutError):
    """Not all ranks of a process group came in time; the text names those that did not."""


class CollectiveTimeout(MpgradError, TimeoutError):
    """A collective took longer than the group's timeout; the text names whom it waited for."""


class EngineClosed(MpgradError):
    """The engine was used after ``close()`` or outside its ``with`` block."""


class ProtocolError(MpgradError):
    """A peer sent a message that the protocol does not allow: malformed, forged or out of range."""


class InvariantViolated(MpgradError):
    """The scheduler's tables contradict each other: always a bug in mpgrad."""


class SharedMemoryExhausted(MpgradError, MemoryError):
    """An arena has reached its limit.

    Attributes:
        requested: bytes that were asked for.
        used: bytes in live blocks.
        limit: bytes that the arena may hold.
    """

    def __init__(self, requested: int, used: int, limit: int, arena: str = "arena") -> None:
        self.requested, self.used, self.limit = requested, used, limit
        super().__init__(
            f"the shared-memory {arena} cannot hold {requested:,} more bytes: {used:,} of "
            f"{limit:,} bytes are in use. Raise Engine(shm_limit=...) or MPGRAD_SHM_LIMIT, or free "
            "tensors (`del`, zero_grad(set_to_none=True))."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.requested, self.used, self.limit))


class LinAlgError(RuntimeError):
    """A matrix is singular, or not positive definite, or an iteration did not settle."""


class RemoteTraceback(Exception):
    """Carries a worker's traceback as the ``__cause__`` of the exception that the caller gets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note``; nothing where the user's class does not let itself be changed."""
    with contextlib.suppress(Exception):
        error.add_note(note)
