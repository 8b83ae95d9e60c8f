"""cause_of(): the exception that a failed graph raises in its caller."""

from __future__ import annotations

from collections.abc import Callable

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.function_nodes.call_sites import call_in_words
from mpgrad.base import machine
from mpgrad.base.user_frames import stack_without_ours
from mpgrad.calls.fork_function import branch_in_words, note_failure
from mpgrad.errors import (
    EngineClosed,
    InvariantViolated,
    ProtocolError,
    RemoteTraceback,
    SharedMemoryExhausted,
    TaskTimedOut,
    WorkerLost,
    add_note,
)
from mpgrad.recording.graph.anomaly import explain_failure
from mpgrad.scheduler.instructions import FailGraph
from mpgrad.scheduler.plan_tables import Plan
from mpgrad.wire.programs import name_of
from mpgrad.wire.remote_error import decode_error


def cause_of(
    outcome: FailGraph, frozen: FrozenGraph, planned: Plan, client_error: BaseException | None
) -> BaseException:
    """The exception to raise.

    Args:
        outcome: the coordinator's last message about the graph.
        frozen, planned: the graph.
        client_error: the exception of that task, if the client has run it.
    """
    if outcome.kind == "error":
        members = planned.groups[outcome.task]
        error = client_error
        if error is None or outcome.error:
            error = decode_error(outcome.error)
        failed = frozen.nodes[members[outcome.step].node]
        note_failure(failed)
        if call := call_in_words(failed, frozen.nodes):
            add_note(error, call)
        if isinstance(error, Exception):
            explain_failure(failed)
        if isinstance(error, ProtocolError | InvariantViolated):
            error.add_note("This is a bug in mpgrad, or something has overwritten its memory.")
        return error
    if outcome.kind == "memory":
        requested, used, limit = map(int, outcome.error.split())
        small = " (kept small by `ulimit -v` or `ulimit -f`)" if machine.mappable_bytes() else ""
        exhausted = SharedMemoryExhausted(requested, used, limit, f"engine arena{small}")
        exhausted.add_note(f"{_names(frozen, planned, outcome.task)}. No .grad was changed.")
        return exhausted
    text, _, stack = outcome.error.decode(errors="replace").partition("\n")
    if outcome.kind == "lost":
        advice = (
            " The cause of this error (__cause__) is its Python stack." if stack else _advice(text)
        )
        lost = WorkerLost(
            f"{_names(frozen, planned, outcome.task)}: {text}. No .grad was changed.{advice}"
        )
        if stack:
            lost.__cause__ = RemoteTraceback(stack_without_ours(stack))
        return lost
    if outcome.kind == "hung":
        return TaskTimedOut(
            f"{_names(frozen, planned, outcome.task)}: {text}. No .grad was changed. "
            "Engine(task_timeout=...) sets the longest time of a task."
        )
    return EngineClosed(f"the backward was cancelled: {text}. No .grad was changed.")


def error_of_calls(outcome: FailGraph, name_of_task: Callable[[int], str]) -> BaseException:
    """The exception of calls that failed."""
    name = name_of_task(outcome.task) if outcome.task >= 0 else "the calls could not be finished"
    if outcome.kind == "error":
        return decode_error(outcome.error)
    if outcome.kind == "memory":
        requested, used, limit = map(int, outcome.error.split())
        exhausted = SharedMemoryExhausted(requested, used, limit, "engine arena")
        exhausted.add_note(name)
        return exhausted
    text, _, stack = outcome.error.decode(errors="replace").partition("\n")
    if outcome.kind == "hung":
        return TaskTimedOut(
            f"{name}: {text}. Engine(task_timeout=...) sets the longest time of a task."
        )
    if outcome.kind == "lost":
        lost = WorkerLost(f"{name}: {text}.{'' if stack else _advice(text)}")
        if stack:
            lost.__cause__ = RemoteTraceback(stack_without_ours(stack))
        return lost
    return EngineClosed(f"the calls were cancelled: {text}")


def _advice(text: str) -> str:
    """The remedy for a death with this text."""
    need_less = (
        "Fewer workers (Engine(cpu_workers=...)), a smaller Engine(shm_limit=...) or smaller "
        "tensors need less."
    )
    if "memory ran out" in text:
        return f" {need_less} A container's limit may be raised."
    if "SIGKILL" in text:
        return (
            " SIGKILL comes from outside: a kill -9, or the kernel's out-of-memory killer "
            f"(see `dmesg`). {need_less}"
        )
    return ' Run it with Engine(mode="local") and `python -X faulthandler` to see where it happens.'


def _names(frozen: FrozenGraph, planned: Plan, task: int) -> str:
    if task < 0:
        return "the backward could not be finished"
    members = [member.node for member in planned.groups[task]]
    name = name_of([frozen.spec.nodes[at].name for at in members])
    branches = [*filter(None, [branch_in_words(frozen.nodes[at]) for at in members])]
    more = f", and {len(branches) - 1} more" if len(branches) > 1 else ""
    return f"the task {name} {f'({branches[0]}{more}) ' if branches else ''}could not be run"
