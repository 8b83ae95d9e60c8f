"""OperatorMode: sees every operator that runs on its thread, and may replace its forward.

It is at the level of PyTorch's TorchDispatchMode, below autograd: the recording does not change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpgrad.base.thread_state import PerThread

if TYPE_CHECKING:
    from mpgrad.graph.registry import Operator
    from mpgrad.tensors.tensor import Tensor


class OperatorMode:
    """Use a subclass as a context manager; of several, the innermost sees an operator first."""

    def __enter__(self) -> OperatorMode:
        MODES.push(self)
        return self

    def __exit__(self, *exc: object) -> None:
        MODES.pop(self)

    def forward(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """The results of ``operator``: those of ``run()``, or others instead."""
        return run()

    def done(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        outputs: Sequence[Tensor],
    ) -> None:
        """``operator`` has run; ``outputs`` are not recorded yet."""

    def changed(self, operator: Operator, tensor: Tensor, others: Sequence[Any]) -> None:
        """``tensor`` was overwritten with the result of ``operator`` for it and ``others``."""


class _Entered(PerThread):
    modes: tuple[OperatorMode, ...] = ()


class OperatorModes:
    """The modes of every thread.

    Attributes:
        entered: the modes in force on all threads together; nearly always none, and then calls
            need not look up their thread.
    """

    __slots__ = ("_everywhere", "_mine", "entered")

    def __init__(self) -> None:
        self.entered: list[OperatorMode] = []
        self._mine = _Entered()
        self._everywhere: tuple[OperatorMode, ...] = ()

    def push(self, mode: OperatorMode) -> None:
        self._mine.modes = (*self._mine.modes, mode)
        self.entered.append(mode)

    def pop(self, mode: OperatorMode) -> None:
        """Leave ``mode``, the innermost one.

        Raises:
            RuntimeError: it is not the innermost one.
        """
        modes = self._mine.modes
        if not modes or modes[-1] is not mode:
            raise RuntimeError("operator modes are left in another order than they were entered")
        self._mine.modes = modes[:-1]
        self.entered.pop()  # only the number of entries matters

    def push_everywhere(self, mode: OperatorMode) -> None:
        """Let ``mode`` see the forward of operators on all threads, behind their own modes."""
        self._everywhere = (*self._everywhere, mode)
        self.entered.append(mode)

    def pop_everywhere(self, mode: OperatorMode) -> None:
        """The end of :meth:`push_everywhere`, on any thread."""
        self._everywhere = tuple([other for other in self._everywhere if other is not mode])
        self.entered.pop()

    def forward(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """One operator's forward as the modes of this thread run it."""
        for mode in (*self._everywhere, *self._mine.modes):
            run = functools.partial(mode.forward, operator, inputs, attributes, run)
        return run()

    def done(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        outputs: Sequence[Tensor],
    ) -> None:
        for mode in reversed(self._mine.modes):
            mode.done(operator, inputs, attributes, outputs)

    def changed(self, operator: Operator, tensor: Tensor, others: Sequence[Any]) -> None:
        for mode in reversed(self._mine.modes):
            mode.changed(operator, tensor, others)


MODES = OperatorModes()
