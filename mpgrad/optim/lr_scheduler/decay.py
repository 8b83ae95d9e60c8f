"""Schedules that multiply the learning rate by a factor in each step."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from mpgrad.optim.lr_scheduler.scheduler import LRScheduler
from mpgrad.optim.optimizer import Optimizer


class _Decay(LRScheduler):
    """Multiplies the current learning rate: other schedules may change it in between."""

    def _factor(self) -> float | None:
        """The factor of the current learning rate in ``last_epoch``; None keeps it."""
        raise NotImplementedError

    def _total_factor(self) -> float:
        """The factor of the initial learning rate up to ``last_epoch``."""
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        self._expect_step()
        factor = self._factor()
        return self._current() if factor is None else [lr * factor for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        factor = self._total_factor()
        return [base * factor for base in self.base_lrs]


class StepLR(_Decay):
    """Times ``gamma`` every ``step_size`` epochs.

    Args:
        optimizer: whose learning rates are set.
        step_size: epochs between two decays.
        gamma: factor of a decay.
        last_epoch: as in ``LRScheduler``.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float | None:
        is_between = self.last_epoch == 0 or self.last_epoch % self.step_size != 0
        return None if is_between else self.gamma

    def _total_factor(self) -> float:
        return float(self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(_Decay):
    """Times ``gamma`` at each milestone.

    Args:
        optimizer: whose learning rates are set.
        milestones: epochs; one that occurs twice decays twice.
        gamma: factor of a decay.
        last_epoch: as in ``LRScheduler``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float | None:
        count = self.milestones.get(self.last_epoch)
        return None if count is None else float(self.gamma**count)

    def _total_factor(self) -> float:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return float(self.gamma**passed)


class ConstantLR(_Decay):
    """Times ``factor`` for the first ``total_iters`` epochs.

    Args:
        optimizer: whose learning rates are set.
        factor: between 0 and 1.
        total_iters: epochs.
        last_epoch: as in ``LRScheduler``.

    Raises:
        ValueError: ``factor`` is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1.0:
            raise ValueError(
                f"Constant multiplicative factor expected to be between 0 and 1, but got {factor}."
            )
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float | None:
        if self.last_epoch == 0:
            return self.factor
        return 1.0 / self.factor if self.last_epoch == self.total_iters else None

    def _total_factor(self) -> float:
        return self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor)


class LinearLR(_Decay):
    """From ``start_factor`` to ``end_factor`` of the initial learning rate, along a line.

    Args:
        optimizer: whose learning rates are set.
        start_factor: above 0, at most 1.
        end_factor: between 0 and 1.
        total_iters: epochs from one to the other.
        last_epoch: as in ``LRScheduler``.

    Raises:
        ValueError: a factor is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1.0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal "
                f"to 1, but got {start_factor}."
            )
        if not 0 <= end_factor <= 1.0:
            raise ValueError(
                "Ending multiplicative factor expected to be between 0 and 1, but got "
                f"{end_factor}."
            )
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float | None:
        if self.last_epoch == 0:
            return self.start_factor
        if self._is_initial or self.last_epoch > self.total_iters:
            return None
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return 1.0 + rise / before

    def _total_factor(self) -> float:
        rise = self.end_factor - self.start_factor
        return self.start_factor + rise * min(self.total_iters, self.last_epoch) / self.total_iters


class ExponentialLR(_Decay):
    """Times ``gamma`` in each epoch.

    Args:
        optimizer: whose learning rates are set.
        gamma: factor of a decay.
        last_epoch: as in ``LRScheduler``.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float | None:
        return None if self._is_initial else self.gamma

    def _total_factor(self) -> float:
        return float(self.gamma**self.last_epoch)


class PolynomialLR(_Decay):
    """Times ``(1 - epoch / total_iters) ** power``: zero from ``total_iters`` on.

    Args:
        optimizer: whose learning rates are set.
        total_iters: epochs until zero.
        power: of the polynomial.
        last_epoch: as in ``LRScheduler``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _factor(self) -> float | None:
        if self._is_initial or self.last_epoch > self.total_iters:
            return None
        left = 1.0 - self.last_epoch / self.total_iters
        left_before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return float((left / left_before) ** self.power)

    def _total_factor(self) -> float:
        passed = min(self.total_iters, self.last_epoch)
        return float((1.0 - passed / self.total_iters) ** self.power)
