"""CallRunner: runs the calls that the client wants forward, and keeps their branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mpgrad.autograd.running.node_loop import Apply
from mpgrad.base.handles import Block, GradientRef
from mpgrad.calls.array_library import library_of
from mpgrad.calls.branch import Branch, has_history, record
from mpgrad.calls.branch_gradients import differentiate
from mpgrad.calls.call import BranchCall
from mpgrad.calls.fork_function import gone
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.calls.made_again import made_again
from mpgrad.calls.packing import call_of, derivative_of
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.shm.digest import digest_of
from mpgrad.wire.packed_texts import unpack_text
from mpgrad.wire.programs import (
    BranchRule,
    CallAnswer,
    CallRule,
    DerivativeRule,
    PackedArray,
    ResultTensor,
)
from mpgrad.workers.worker_memory import WorkerMemory

Array: TypeAlias = np.ndarray[Any, Any]

#: Each tensor among the bytes of a result starts at a multiple of this.
ALIGNMENT = 64
#: The bytes of a result that may travel inside the message although a block was expected.
INLINE_BYTES_MAX = 64 << 10


_WRITTEN = (
    "{name} has written into the memory of {what}, which it shares with other calls. Work on "
    "a copy of it, and return what the caller needs"
)


class CallRunner:
    """Runs calls in this worker.

    Args:
        memory: opens the arguments and the block of the results.
        slot: of this worker.
        limit_bytes: of the branches here.
        note_branches: is told their number and their bytes.
    """

    def __init__(
        self,
        memory: WorkerMemory,
        slot: int,
        limit_bytes: int | None,
        note_branches: Callable[[int, int], None],
    ) -> None:
        self._memory, self._slot = memory, slot
        BRANCHES.limit_bytes, BRANCHES.on_change = limit_bytes, note_branches

    def run(
        self, rule: CallRule | DerivativeRule, blocks: Sequence[Block | None]
    ) -> tuple[tuple[GradientRef, ...], int]:
        """The outputs of the task, and the bytes that were copied into its block.

        Raises:
            BaseException: what the function raises.
        """
        written = self._memory.diverted_bytes()
        call = rule if isinstance(rule, CallRule) else rule.call
        before = self._digests(call) if written else []
        kept = BRANCHES.get(rule.number) if isinstance(rule, CallRule) else None
        branch = self._run(rule) if kept is None else kept
        if self._memory.diverted_bytes() > written:
            what = self._differing(call, before)
            raise RuntimeError(_WRITTEN.format(name=unpack_text(call.name), what=what))
        parts, outputs, buffers, changed = _laid_out(branch)
        nbytes = parts[-1][0] + parts[-1][1].nbytes if parts else 0
        is_recorded = branch.is_recorded
        saved, unreached = branch.library.used_inputs(branch) if is_recorded else ((), ())
        answer = CallAnswer(
            branch.result,
            tuple(outputs),
            tuple(buffers),
            tuple(changed),
            tuple(saved),
            tuple(unreached),
            branch.digest() if is_recorded else 0,
            tuple(branch.library.aliases(branch)),
            nbytes,
            self._slot,
        )
        data = self._write(parts, nbytes, blocks[1])
        if isinstance(rule, CallRule):
            lacks_room = data is None and nbytes > 0  # the call comes again
            if kept is None and (is_recorded or lacks_room):
                BRANCHES.put(rule.number, branch, rule.seed)
            elif kept is not None and not (is_recorded or lacks_room):
                BRANCHES.drop(rule.number)
        return (msgspec.msgpack.encode(answer), data), nbytes

    def _digests(self, rule: CallRule) -> list[int]:
        """Of each input, as it lies in memory."""
        arrays = [None if one is None else self._memory.open_packed(one) for one in rule.inputs]
        return [0 if array is None else digest_of(array) for array in arrays]

    def _differing(self, rule: CallRule, before: list[int]) -> str:
        """The first input with another digest than before, in words."""
        pairs = zip(before, self._digests(rule), strict=True)
        number = next((at for at, (old, new) in enumerate(pairs) if old != new), None)
        if number is None:
            return "an argument"
        kind, packed = call_of(rule, self._memory.open_packed).inputs[number], rule.inputs[number]
        nbytes = 0 if packed is None else self._memory.open_packed(packed).nbytes
        return kind.name or f"an argument of {nbytes:,} bytes"

    def _run(self, rule: CallRule | DerivativeRule) -> Branch:
        unpack = self._memory.open_packed
        if isinstance(rule, CallRule):
            call = call_of(rule, unpack)
            return record(call, self._leaves(call, rule.inputs))
        task = derivative_of(rule, unpack)
        leaf = library_of(task.call.library).leaf
        grads = [leaf(kind, unpack(one)) for kind, one in zip(task.kinds, rule.grads, strict=True)]
        return differentiate(task, lambda: self._leaves(task.call, rule.call.inputs), grads)

    def _leaves(self, call: BranchCall, inputs: Sequence[PackedArray | None]) -> list[Any]:
        leaf, leaves = library_of(call.library).leaf, []
        for number, (kind, packed) in enumerate(zip(call.inputs, inputs, strict=True)):
            if packed is None:
                raise gone(call, number)
            leaves.append(leaf(kind, self._memory.open_packed(packed)))
        return leaves

    def _branch(self, rule: CallRule, digest: int) -> Branch:
        """The branch of a call that ran before, from here or made again."""
        branch = BRANCHES.get(rule.number)
        if branch is None:
            call = call_of(rule, self._memory.open_packed)
            branch = made_again(call, self._leaves(call, rule.inputs), digest)
        return branch

    def differentiate(self, rule: BranchRule) -> Apply:
        """The rule of a Node that stands for a branch."""

        def apply(xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
            given: list[Tensor | None] = [None] * rule.output_count
            for number, grad in zip(rule.wanted, grads, strict=True):
                given[number] = None if grad is None else Tensor(grad)
            try:
                found = self._branch(rule.call, rule.digest).differentiate(given, needs[1:])
            except BaseException:
                with call_of(rule.call, self._memory.open_packed).noted_in_backward():
                    raise
            return [None, *[None if one is None else one._array for one in found]]

        return apply

    def forget(self, number: int) -> None:
        """Nobody will differentiate this branch."""
        BRANCHES.drop(number)

    def _write(
        self, parts: list[tuple[int, Array]], nbytes: int, block: Block | None
    ) -> GradientRef:
        """The bytes of the results: in ``block`` if they fit, else inside the message; None if they
        fit nowhere, so that the client has to ask again with a larger block."""
        is_in_block = block is not None and block.nbytes >= nbytes
        if not nbytes or (not is_in_block and nbytes > INLINE_BYTES_MAX):
            return None
        if block is None or not is_in_block:
            memory: Any = np.empty(nbytes, np.uint8)
        else:
            memory = self._memory.open_output(block, (block.nbytes,), np.uint8)
        for start, array in parts:
            # The elements in the order in which they lie in memory.
            flat = array.ravel(order="K")
            memory[start : start + array.nbytes] = flat.view(np.uint8)
        if block is None or not is_in_block:
            return memory.tobytes()
        self._memory.seal(block)
        return block


def _laid_out(
    branch: Branch,
) -> tuple[
    list[tuple[int, Array]],
    list[ResultTensor],
    list[ResultTensor],
    list[tuple[int, ResultTensor]],
]:
    """Where each array of a result begins, and their descriptions: outputs, buffers, changed
    inputs."""
    parts: list[tuple[int, Array]] = []
    end = 0

    def placed(
        array: Array, shape: Any, strides: Any, dtype: str, requires_grad: bool = False
    ) -> ResultTensor:
        nonlocal end
        start = -(-end // ALIGNMENT) * ALIGNMENT
        parts.append((start, array))
        end = start + array.nbytes
        return ResultTensor(start, shape, strides, dtype, requires_grad)

    laid_out = branch.library.laid_out
    outputs = [placed(*laid_out(output), has_history(output)) for output in branch.outputs]
    buffers = [
        placed(buffer, buffer.shape, buffer.strides, buffer.dtype.str) for buffer in branch.buffers
    ]
    changed = [(number, placed(*laid_out(branch.inputs[number]))) for number in branch.changed]
    return parts, outputs, buffers, changed
