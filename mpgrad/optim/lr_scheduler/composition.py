"""Schedules made of schedules: one after another, or in parallel."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from mpgrad.optim.lr_scheduler.plateau import ReduceLROnPlateau
from mpgrad.optim.lr_scheduler.scheduler import LRScheduler, assign
from mpgrad.optim.optimizer import Optimizer


class _Composition(LRScheduler):
    """Has the states of its schedulers in its own."""

    _schedulers: Sequence[LRScheduler]

    def _take(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> None:
        """Note the schedulers and their optimizer.

        Raises:
            ValueError: there is none, one needs a metric, or one is of another optimizer.
            TypeError: one has no optimizer.
        """
        name = type(self).__name__
        if len(schedulers) < 1:
            raise ValueError(f"{name} expects at least one scheduler, but got no scheduler.")
        for index, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(
                    f"{name} at index {index} should have `optimizer` as its attribute."
                )
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau`, whose `step` needs a metric, "
                    f"but got one at index {index}: step that one beside it."
                )
            optimizer = optimizer or scheduler.optimizer
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but "
                    f"{type(scheduler).__name__} at index {index} belongs to another one."
                )
        assert optimizer is not None
        self._schedulers = schedulers
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        states = [scheduler.state_dict() for scheduler in self._schedulers]
        return {**super().state_dict(), "_schedulers": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        schedulers = self._schedulers
        super().load_state_dict({**state_dict, "_schedulers": schedulers})
        for scheduler, state in zip(schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Composition):
    """One schedule after another: at each milestone the next one begins, at its epoch 0.

    Args:
        optimizer: whose learning rates are set.
        schedulers: of that optimizer.
        milestones: epochs, rising: one fewer than schedulers.
        last_epoch: as in ``LRScheduler``.

    Raises:
        ValueError: the schedulers or their number do not fit.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        self._take(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                f"the number of milestone points, but got number of schedulers {len(schedulers)} "
                f"and the number of milestones to be equal to {len(milestones)}"
            )
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        # Each scheduler has made its first step when it was made: that is taken back.
        for group in optimizer.param_groups:
            assign(group, "lr", group["initial_lr"])
        _undo_step(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        """Go to the next epoch, in the scheduler whose turn it is."""
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo_step(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, _Composition):
        for part in scheduler._schedulers:
            _undo_step(part)
    else:
        scheduler.last_epoch -= 1


class ChainedScheduler(_Composition):
    """All schedules in parallel: each step steps all of them, in order.

    Args:
        schedulers: of one optimizer.
        optimizer: that one; the first scheduler's if it is not given.

    Raises:
        ValueError: there is none, one needs a metric, or one is of another optimizer.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        self._take(schedulers, optimizer)
        self._last_lr = self._current()

    def step(self) -> None:  # type: ignore[override]
        """Step all schedulers."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._current()
