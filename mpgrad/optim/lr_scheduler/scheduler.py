"""LRScheduler: counts epochs and sets learning rates; subclasses define ``get_lr``."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, Self

from mpgrad.optim.checked_options import check_arguments
from mpgrad.optim.optimizer import Optimizer, ParamGroup
from mpgrad.recording.tensors.tensor import Tensor


class LRScheduler:
    """Base class of schedulers; making one sets the learning rates of its first epoch.

    Args:
        optimizer: whose ``param_groups`` get new learning rates.
        last_epoch: the epoch before the next one; -1 begins anew and notes each group's learning
            rate as its "initial_lr".

    Attributes:
        base_lrs: the learning rate with which each group began.
        last_epoch: number of the current epoch, from 0.

    Raises:
        TypeError: ``optimizer`` is none, or an option is of a wrong type.
        KeyError: ``last_epoch`` resumes, but a group has no "initial_lr".
    """

    #: Whether the first step, that of ``__init__``, is under way.
    _is_initial = False
    _get_lr_called_within_step = False
    _step_count = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Before __init__: subclasses compute with their options before they call this class's.
        check_arguments(cls, args, kwargs)
        return super().__new__(cls)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = checked(optimizer)
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{index}], which "
                    f"last_epoch={last_epoch} needs: load the optimizer's state first, or leave "
                    "last_epoch out and load the scheduler's state"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """The learning rates of ``last_epoch``, one for each group."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The learning rates that the last step has set, one for each group."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch; call it after ``optimizer.step()``.

        Args:
            epoch: go there instead (deprecated).
        """
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first "
                "learning rate of the schedule was never used. Call `optimizer.step()` first.",
                UserWarning,
                stacklevel=2,
            )
        self._step_count += 1
        if epoch is not None:
            warn_of_epoch()
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        """Set the learning rates of ``epoch``, or of the next one."""
        closed_form = getattr(self, "_get_closed_form_lr", None)
        if epoch is None or closed_form is None:
            closed_form = self.get_lr
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._get_lr_called_within_step = True
        try:
            rates = closed_form()
        finally:
            self._get_lr_called_within_step = False
        self._set(rates)

    def _set(self, rates: list[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            assign(group, "lr", lr)
        self._last_lr = self._current()

    def _current(self) -> list[float]:
        return [copied(group["lr"]) for group in self.optimizer.param_groups]

    def _expect_step(self) -> None:
        """Warn of a ``get_lr`` that no step has called: it may not be the current learning rate."""
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Everything except the optimizer, which has its own state dict."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict()`` of a scheduler of the same kind gave."""
        self.__dict__.update(state_dict)


def copied(option: Any) -> Any:
    """An option of a group, as a value that no step changes in place."""
    return option.clone() if isinstance(option, Tensor) else option


def assign(group: ParamGroup, name: str, value: Any) -> None:
    """Set an option of a group; one that is a Tensor stays the same Tensor."""
    if isinstance(group.get(name), Tensor):
        group[name].fill_(value)
    else:
        group[name] = copied(value)


def checked(optimizer: Optimizer) -> Optimizer:
    """``optimizer``.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


def one_each(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """``value`` once for each group, or the items of a list; Tensors are copied.

    Raises:
        ValueError: the list has another length.
    """
    groups = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [copied(value) for _ in range(groups)]
    if len(value) != groups:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} "
            f"values, param_groups has {groups}."
        )
    return [copied(item) for item in value]


def warn_of_epoch() -> None:
    """Warn that ``step(epoch)`` is deprecated."""
    warnings.warn(
        "The epoch parameter in `scheduler.step()` is deprecated: call `scheduler.step()` once "
        "for each epoch.",
        UserWarning,
        stacklevel=3,
    )


def state_of(function: Callable[..., Any] | None) -> dict[str, Any] | None:
    """The attributes of a callable object; functions have no state that could be saved."""
    if function is None or isinstance(function, types.FunctionType):
        return None
    return function.__dict__.copy()
