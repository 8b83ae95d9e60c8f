"""Submissions of one call each: a host gets several in one message, in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from mpgrad.engine.calls_in_workers import Answered, Request
from mpgrad.engine.packed_arrays import PackedArrays
from mpgrad.engine.submitter import Submission
from mpgrad.wire.captured_state import CapturedState


def single_call(
    request: Request,
    captured: CapturedState,
    keep: PackedArrays,
    depth: int,
    future: Future[Answered],
) -> Submission:
    """The submission of one call, whose answer a Future gets."""

    def end(found: Sequence[Answered] | BaseException) -> None:
        if isinstance(found, BaseException):
            future.set_exception(found)
        else:
            future.set_result(found[0])

    return Submission([request], captured, keep, depth, future.set_running_or_notify_cancel, end)


def one_by_one(submission: Submission) -> list[Submission]:
    """Each of its calls alone: hosts have messages of their own for several."""
    if len(submission.requests) == 1:
        return [submission]
    found: dict[int, Answered] = {}
    failed: list[BaseException] = []

    def end(at: int, one: Sequence[Answered] | BaseException) -> None:
        if isinstance(one, BaseException):
            failed.append(one)
            if len(failed) == 1:
                submission.tell(one)
            return
        found[at] = one[0]
        if len(found) == len(submission.requests):
            submission.tell([found[number] for number in range(len(found))])

    return [
        replace(submission, requests=[request], end=partial(end, at))
        for at, request in enumerate(submission.requests)
    ]
