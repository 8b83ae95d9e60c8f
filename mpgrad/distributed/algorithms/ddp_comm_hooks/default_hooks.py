"""The hooks that need no state but the group: how the gradients of a bucket are averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.base.dtypes import float16
from mpgrad.distributed.futures import Future
from mpgrad.distributed.grad_bucket import GradBucket
from mpgrad.distributed.process_group import ProcessGroup, group_of
from mpgrad.distributed.reductions import ReduceOp, all_reduce
from mpgrad.recording.tensors.tensor import Tensor


def allreduce_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future:
    """The average, with the bits that it has without a hook."""
    return _all_reduced(bucket.buffer(), ReduceOp.AVG, process_group)


def fp16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future:
    """The average of gradients that travel as float16.

    They are divided by the number of ranks before they are added, so that the sum is no larger than
    the largest of them.
    """
    group, buffer = group_of(process_group), bucket.buffer()
    compressed = buffer.to(float16).div_(group.size())
    return _all_reduced(compressed, ReduceOp.SUM, group).then(
        lambda done: buffer.copy_(done.value())
    )


def fp16_compress_wrapper(
    hook: Callable[[Any, GradBucket], Future],
) -> Callable[[Any, GradBucket], Future]:
    """A hook that gives ``hook`` the gradients as float16."""

    def compressed_hook(state: Any, bucket: GradBucket) -> Future:
        buffer = bucket.buffer()
        bucket.set_buffer(buffer.to(float16))
        return hook(state, bucket).then(lambda done: buffer.copy_(done.value()))

    return compressed_hook


def _all_reduced(tensor: Tensor, op: ReduceOp, group: ProcessGroup | None) -> Future:
    work = all_reduce(tensor, op, group, async_op=True)
    assert work is not None, "a model belongs to ranks of its group only"
    return work.get_future().then(lambda done: done.value()[0])
