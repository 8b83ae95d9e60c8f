"""Faults of branches, planted in workers alone by ``MPGRAD_TEST_HOOK``; the fuzz must find each."""

from __future__ import annotations

from typing import Any

from mpgrad.calls import branch, kept_branches, made_again, own_tensors


def an_old_branch(process: str, part: Any) -> Any:
    """A backward gets the branch, with its ctx, of the call before."""
    if process == "worker":
        right = kept_branches.Branches.get

        def wrong(self: Any, number: int) -> Any:
            found, before = right(self, number), right(self, number - 1)
            fits = before is not None and len(before.outputs) == len(getattr(found, "outputs", ()))
            return before if fits else found

        kept_branches.Branches.get = wrong  # type: ignore[method-assign]
    return part


def another_seed_after_eviction(process: str, part: Any) -> Any:
    """No branch is kept, and one that is made again draws other numbers, which its digest shows."""
    if process == "worker":
        kept_branches.Branches.put = lambda *_: None  # type: ignore[method-assign]
        right = made_again.record

        def wrong(call: Any, inputs: Any, **options: Any) -> Any:
            return right(call._replace(seed=tuple([n + 1 for n in call.seed])), inputs, **options)

        made_again.record = wrong
    return part


def no_digest_is_compared(process: str, part: Any) -> Any:
    """As above, and the digest is that of what was made again."""
    if process == "worker":
        another_seed_after_eviction(process, part)
        branch.Branch.digest = lambda self: 1  # type: ignore[method-assign]
    return part


def a_sum_in_another_order(process: str, part: Any) -> Any:
    """The results of a chunk are added as if they had arrived from the last to the first."""
    if process == "worker":
        right = branch._record

        def wrong(call: Any, inputs: Any, is_copy: bool) -> Any:
            items = call.items[::-1] if call.is_sum else call.items
            return right(call._replace(items=items), inputs, is_copy)

        branch._record = wrong
    return part


def a_buffer_is_written_twice(process: str, part: Any) -> Any:
    """A branch begins with the buffers that the one before has left in this process."""
    if process == "worker":
        left: dict[tuple[int, ...], Any] = {}
        right = own_tensors.OwnTensors.leaf

        def wrong(self: Any, kind: Any, array: Any) -> Any:
            found = right(self, kind, array)
            return left.setdefault(array.shape, found) if kind.is_buffer else found

        own_tensors.OwnTensors.leaf = wrong  # type: ignore[method-assign]
    return part


def no_seed_at_all(process: str, part: Any) -> Any:
    """Items draw from whatever the worker has drawn before."""
    if process == "worker":
        branch.seed_generators = lambda *_: None
    return part
