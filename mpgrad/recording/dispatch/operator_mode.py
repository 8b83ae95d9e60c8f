"""OperatorMode: sees every operator that runs on its thread, and may replace its forward.

It is at the level of PyTorch's TorchDispatchMode, below autograd: the recording does not change. An
observer only hears of operators: under it they run as they do without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mpgrad.base.thread_state import PerThread

if TYPE_CHECKING:
    from mpgrad.recording.graph.registry import Operator
    from mpgrad.recording.tensors.tensor import Tensor


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


#: Hears of each operator that has run: the operator, its inputs, when it began (``perf_counter``),
#: and its results; None as the results if it failed.
Observer: TypeAlias = "Callable[[Operator, Sequence[Any], float, Any], None]"


class OperatorModes:
    """The modes of every thread, and the observer of all of them.

    Attributes:
        entered: the modes in force on all threads together, and the observer; nearly always none,
            and then calls need not look up their thread.
        observer: hears of the operators of all threads.
    """

    __slots__ = ("_mine", "entered", "observer")

    def __init__(self) -> None:
        self.entered: list[OperatorMode | Observer] = []
        self.observer: Observer | None = None
        self._mine = _Entered()

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
            raise RuntimeError(
                "operator modes are left in another order than they were entered: leave the one "
                "that was entered last first"
            )
        self._mine.modes = modes[:-1]
        self.entered.remove(mode)

    def observe(self, observer: Observer | None) -> None:
        """Let ``observer`` hear of every operator on all threads; None ends this."""
        if self.observer is not None:
            self.entered.remove(self.observer)
        self.observer = observer
        if observer is not None:
            self.entered.append(observer)

    def forward(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """One operator's forward as the modes of this thread run it."""
        for mode in self._mine.modes:
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
