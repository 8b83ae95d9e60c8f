"""OperatorLogs: the operators that a checkpointed function called in both calls."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from mpgrad.autograd.checkpointing.recomputation import CheckpointError
from mpgrad.recording.dispatch.operator_mode import OperatorMode
from mpgrad.recording.graph.registry import Operator
from mpgrad.recording.tensors.tensor import Tensor

_REPORT = """\
An error happened while unpacking tensors; the operators of both calls are shown below.
You are seeing this error because you passed `debug=True` to checkpoint(), or because of
set_checkpoint_debug_enabled(True).

====== 1. Stack traces of the operators that ran in the original forward
{forward_stacks}
====== 2. Stack traces of the operators that ran during recomputation
{again_stacks}
====== 3. Operations executed during the original forward
{forward}

====== 4. Operations executed during recomputation
{again}

Detected non-determinism while running activation checkpointing: compare 3 and 4 to find the first
operation that differs, then look it up in 1 and 2 to see where it was called.
"""


class _Log(OperatorMode):
    """Logs each operator and its call site."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._stacks: list[str] = []

    def __enter__(self) -> OperatorMode:
        # Each backward of a kept graph computes again.
        self.lines, self._stacks = [], []
        return super().__enter__()

    def done(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        outputs: Sequence[Tensor],
    ) -> None:
        given = [_shown(value) for value in inputs]
        given += [f"{name}={value!r}" for name, value in attributes.items()]
        made = ", ".join(_shown(value) for value in outputs)
        self._note(f"{made} = {operator.name}({', '.join(given)})")

    def changed(self, operator: Operator, tensor: Tensor, others: Sequence[Any]) -> None:
        given = ", ".join(_shown(value) for value in (tensor, *others))
        self._note(f"{_shown(tensor)} = {operator.name}_({given})")

    def _note(self, line: str) -> None:
        self.lines.append(line)
        # Up to the public function that called the operator.
        self._stacks.append("".join(traceback.format_stack()[:-4]))

    def stacks(self, label: str) -> str:
        """All stack traces, each under its operator."""
        count = len(self.lines)
        return "\n".join(
            f"{line}   ({number} of {count} in {label})\n{stack}"
            for number, (line, stack) in enumerate(zip(self.lines, self._stacks, strict=True), 1)
        )


def _shown(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else repr(value)


class OperatorLogs:
    """The logs of one checkpoint's two calls."""

    def __init__(self) -> None:
        self._forward, self._again = _Log(), _Log()

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """For ``context_fn`` of checkpoint()."""
        return self._forward, self._again

    def explain(self, error: CheckpointError) -> NoReturn:
        """Raise ``error`` again, with both logs."""
        raise CheckpointError(
            _REPORT.format(
                forward_stacks=self._forward.stacks("original"),
                again_stacks=self._again.stacks("recompute"),
                forward="\n".join(self._forward.lines),
                again="\n".join(self._again.lines),
            )
        ) from error
