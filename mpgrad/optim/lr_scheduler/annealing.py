"""Schedules along a cosine. Loshchilov and Hutter, "SGDR", 2017."""

from __future__ import annotations

import math

from mpgrad.optim.lr_scheduler.scheduler import LRScheduler
from mpgrad.optim.optimizer import Optimizer


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the initial learning rate down to ``eta_min``, then up again.

    Args:
        optimizer: whose learning rates are set.
        T_max: epochs from the top to the bottom.
        eta_min: learning rate at the bottom.
        last_epoch: as in ``LRScheduler``.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: float, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._expect_step()
        if self._is_initial:
            return self._current()
        if self._step_count == 1 and self.last_epoch > 0:
            return self._get_closed_form_lr()
        now = self._height(self.last_epoch)
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The bottom was reached: there is no height that could be scaled.
            rise = 1 - math.cos(math.pi / self.T_max)
            return [
                lr + (base - self.eta_min) * rise / 2
                for lr, base in zip(self._current(), self.base_lrs, strict=True)
            ]
        ratio = now / self._height(self.last_epoch - 1)
        return [ratio * (lr - self.eta_min) + self.eta_min for lr in self._current()]

    def _get_closed_form_lr(self) -> list[float]:
        height = self._height(self.last_epoch)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]

    def _height(self, epoch: int) -> float:
        """Between 0 and 2."""
        return 1 + math.cos(math.pi * epoch / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from the initial learning rate down to ``eta_min``, again and again.

    Args:
        optimizer: whose learning rates are set.
        T_0: epochs until the first restart.
        T_mult: how many times longer each period is than the one before.
        eta_min: learning rate at the bottom.
        last_epoch: as in ``LRScheduler``.

    Raises:
        ValueError: ``T_0`` or ``T_mult`` is not positive.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._expect_step()
        height = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to ``epoch``, which may be a fraction.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        if epoch is not None and epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        if epoch is None and self.last_epoch >= 0:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            epoch = epoch or 0
            self._go_to(epoch)
        super()._update_lr(math.floor(epoch))

    def _go_to(self, epoch: float) -> None:
        """Find the period in which ``epoch`` lies."""
        if epoch >= self.T_0 and self.T_mult > 1:
            periods = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            start = self.T_0 * (self.T_mult**periods - 1) / (self.T_mult - 1)
            self.T_cur = epoch - start
            self.T_i = self.T_0 * self.T_mult**periods
        elif epoch >= self.T_0:
            self.T_cur = epoch % self.T_0
        else:
            self.T_cur, self.T_i = epoch, self.T_0
