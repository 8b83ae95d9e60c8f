"""The exceptions that mpgrad itself raises; misuse raises what PyTorch raises.

This file knows no other part of the package.
"""

from __future__ import annotations

import contextlib
import functools


class MpgradError(RuntimeError):
    """Base of every error that the executor itself raises."""


class CompilationError(MpgradError):
    """``mg.compile(fullgraph=True)`` met what it cannot compile; the text says what, and where."""


class PerformanceWarning(UserWarning):
    """The program is slower than it could be; the text says what to do."""


class WorkerLost(MpgradError):
    """A worker process died while it ran a NodeTask, and the task may not be retried again."""


class TaskTimedOut(WorkerLost, TimeoutError):
    """A NodeTask took longer than ``Engine(task_timeout=...)`` allows, and so did its retry."""


class CoordinatorLost(MpgradError):
    """The coordinator process died; the next call starts the engine again.

    Attributes:
        has_run_user_code: hooks or Functions of the backward had already run in this process.
    """

    has_run_user_code = False


class ResultsDiffer(MpgradError):
    """A Function gave another gradient on a worker than here; see ``Engine(check=...)``."""


class HostLost(MpgradError):
    """A rank died, cannot be reached, or left while others waited for it.

    Attributes:
        rank: the lost rank.
        cause: the reason, as far as it is known.
        during: what has ended by that.
        of_calls: remote calls, which go on with the others, not a process group, which does not.
    """

    def __init__(self, rank: int, cause: str, during: str = "", *, of_calls: bool = False) -> None:
        self.rank, self.cause, self.during, self.of_calls = rank, cause, during, of_calls
        what = f"{during}: " if during else ""
        remedy = (
            "What it owned is lost. `mpgrad run --max-restarts` would start it again for calls."
            if of_calls
            else "Its groups cannot go on without it: start all ranks again."
        )
        super().__init__(f"{what}rank {rank} is lost: {cause}. {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        make = functools.partial(type(self), of_calls=self.of_calls)
        return make, (self.rank, self.cause, self.during)


class RendezvousTimeout(MpgradError, TimeoutError):
    """Some ranks of a process group did not come in time; the text names them."""


class CollectiveTimeout(MpgradError, TimeoutError):
    """A collective took longer than the group's timeout; the text names the ranks it waited for."""


class EngineClosed(MpgradError):
    """The engine was used after ``close()`` or outside its ``with`` block."""


class ProtocolError(MpgradError):
    """A peer sent a message that the protocol does not allow: malformed, forged or out of range."""


class InvariantViolated(MpgradError):
    """The scheduler's tables contradict each other: always a bug in mpgrad."""


class TablesCorrupt(InvariantViolated):
    """The coordinator's tables do not add up, by a bug or by damaged memory: its process ends."""


class BytesCorrupted(MpgradError):
    """The bytes of a published block are not what its worker wrote; see ``Engine(check="bytes")``.

    The cause is outside of mpgrad's tables: native code that writes where it must not, or memory
    that is broken.
    """


class SharedMemoryExhausted(MpgradError, MemoryError):
    """An arena has reached its limit.

    Attributes:
        requested: the bytes of the request.
        used: bytes in live blocks.
        limit: bytes that the arena may hold.
    """

    def __init__(self, requested: int, used: int, limit: int, arena: str = "arena") -> None:
        self.requested, self.used, self.limit = requested, used, limit
        raised = "Engine(shm_limit=...) or MPGRAD_SHM_LIMIT"
        if "ulimit" in arena:
            raised = "that limit of this process"
        super().__init__(
            f"the shared-memory {arena} cannot hold {requested:,} more bytes: {used:,} of "
            f"{limit:,} bytes are in use. Raise {raised}, or free tensors (`del`, "
            "zero_grad(set_to_none=True))."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.requested, self.used, self.limit))


class LinAlgError(RuntimeError):
    """A matrix is singular or not positive definite, or an iteration did not converge."""


class RemoteTraceback(Exception):
    """Carries a worker's traceback as the ``__cause__`` of the exception that the caller gets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note``; does nothing if the user's class does not allow changes."""
    with contextlib.suppress(Exception):
        error.add_note(note)
