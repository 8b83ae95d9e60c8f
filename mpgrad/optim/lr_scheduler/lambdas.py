"""Schedules that are functions of the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.optim.lr_scheduler.scheduler import LRScheduler, state_of
from mpgrad.optim.optimizer import Optimizer


class LambdaLR(LRScheduler):
    """The initial learning rate times ``lr_lambda(epoch)``.

    The state of a callable object is saved with the scheduler's, that of a function is not.

    Args:
        optimizer: whose learning rates are set.
        lr_lambda: from an epoch to a factor; one for all groups, or a list of one for each.
        last_epoch: as in ``LRScheduler``.

    Raises:
        TypeError: an ``lr_lambda`` cannot be called.
        ValueError: there are more or fewer functions than groups.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        given = isinstance(lr_lambda, list | tuple)
        self.lr_lambdas: list[Any] = list(lr_lambda) if given else [lr_lambda] * groups  # type: ignore[arg-type]
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"Expected {groups} lr_lambdas, but got {len(self.lr_lambdas)}")
        for function in self.lr_lambdas:
            if not callable(function):
                raise TypeError(
                    f"lr_lambda should be a function, but got {type(function).__name__}"
                )
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._expect_step()
        pairs = zip(self.lr_lambdas, self.base_lrs, strict=True)
        return [base * function(self.last_epoch) for function, base in pairs]

    def state_dict(self) -> dict[str, Any]:
        functions = [state_of(function) for function in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": functions}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        functions = self.lr_lambdas
        super().load_state_dict({**state_dict, "lr_lambdas": functions})
        for function, kept in zip(functions, state_dict["lr_lambdas"], strict=True):
            if kept is not None:
                function.__dict__.update(kept)


class MultiplicativeLR(LambdaLR):
    """The learning rate times ``lr_lambda(epoch)`` in each step.

    Args: those of ``LambdaLR``.
    """

    def get_lr(self) -> list[float]:
        self._expect_step()
        if self._is_initial:
            return self._current()
        pairs = zip(self.lr_lambdas, self._current(), strict=True)
        return [lr * function(self.last_epoch) for function, lr in pairs]
