"""Schedules that raise the learning rate and lower it again, and the momentum the other way.

Smith, "Cyclical learning rates for training neural networks", 2017; Smith and Topin,
"Super-convergence", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.optim.lr_scheduler.scheduler import LRScheduler, assign, checked, one_each, state_of
from mpgrad.optim.optimizer import Optimizer, ParamGroup


class _Cycle(LRScheduler):
    """Sets the momentum, too: the group's "momentum", or the first of its "betas"."""

    cycle_momentum: bool

    def _begin_momentum(self, base: Any, largest: Any, last_epoch: int) -> None:
        """Let each group note its bounds, and begin with the largest.

        Raises:
            ValueError: the optimizer has no momentum.
        """
        optimizer = self.optimizer
        self.use_beta1 = "betas" in optimizer.defaults
        if not self.use_beta1 and "momentum" not in optimizer.defaults:
            raise ValueError(
                "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
            )
        bases = one_each("base_momentum", optimizer, base)
        largests = one_each("max_momentum", optimizer, largest)
        if last_epoch == -1:
            bounds = zip(optimizer.param_groups, bases, largests, strict=True)
            for group, base_momentum, max_momentum in bounds:
                self._set_momentum(group, max_momentum)
                group["max_momentum"] = max_momentum
                group["base_momentum"] = base_momentum

    def _set_momentum(self, group: ParamGroup, momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            assign(group, "momentum", momentum)


class CyclicLR(_Cycle):
    """Up from ``base_lr`` to ``max_lr`` and down again along lines, over and over.

    Args:
        optimizer: whose learning rates and momenta are set.
        base_lr: learning rate at the bottom; a list has one for each group.
        max_lr: learning rate at the top; likewise.
        step_size_up: steps from bottom to top.
        step_size_down: steps from top to bottom; those of ``step_size_up`` if not given.
        mode: how the height changes. "triangular": it stays; "triangular2": each cycle halves it;
            "exp_range": each step multiplies it by ``gamma``.
        gamma: of "exp_range".
        scale_fn: a function that gives the height's factor, in place of ``mode``.
        scale_mode: what ``scale_fn`` is given: the number of the "cycle", from 1, or that of the
            step ("iterations").
        cycle_momentum: whether the momentum goes the other way.
        base_momentum: momentum at the top of the learning rate; a list has one for each group.
        max_momentum: momentum at the bottom of the learning rate; likewise.
        last_epoch: as in ``LRScheduler``.

    Raises:
        ValueError: ``mode`` is unknown, a list has a wrong length, or there is no momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: float = 2000,
        step_size_down: float | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked(optimizer)
        base_lrs = one_each("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for lr, group in zip(base_lrs, optimizer.param_groups, strict=True):
                assign(group, "lr", lr)
        self.max_lrs = one_each("max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up) + float(down)
        self.step_ratio = float(step_size_up) / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(
                f"mode is invalid and scale_fn is None: mode {mode!r} is none of 'triangular', "
                "'triangular2' and 'exp_range'"
            )
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch)
            self.base_momentums = one_each("base_momentum", optimizer, base_momentum)
            self.max_momentums = one_each("max_momentum", optimizer, max_momentum)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """The height's factor in cycle or step ``x``, by ``scale_mode``."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "exp_range":
            return float(self.gamma**x)
        return float(1 / 2.0 ** (x - 1)) if self.mode == "triangular2" else 1.0

    def get_lr(self) -> list[float]:
        self._expect_step()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(
                self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True
            )
            for group, low, high in bounds:
                self._set_momentum(group, high - (high - low) * height * scale)
        rates = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * height * scale for low, high in rates]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_scale_fn_custom": state_of(self._scale_fn_custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        scale_fn = self._scale_fn_custom
        super().load_state_dict({**state_dict, "_scale_fn_custom": scale_fn})
        if state_dict["_scale_fn_custom"] is not None:
            scale_fn.__dict__.update(state_dict["_scale_fn_custom"])


class OneCycleLR(_Cycle):
    """Up to ``max_lr`` and down to nearly nothing, once.

    Args:
        optimizer: whose learning rates and momenta are set.
        max_lr: learning rate at the top; a list has one for each group.
        total_steps: steps of the cycle; or give the next two.
        epochs: how many epochs there will be.
        steps_per_epoch: steps of each.
        pct_start: share of the steps that go up.
        anneal_strategy: along a cosine ("cos") or a line ("linear").
        cycle_momentum: whether the momentum goes the other way.
        base_momentum: momentum at the top of the learning rate; a list has one for each group.
        max_momentum: momentum at the bottom of the learning rate; likewise.
        div_factor: the first learning rate is ``max_lr / div_factor``.
        final_div_factor: the last one is the first one divided by this.
        three_phase: go down to the first learning rate as fast as up, then to the last one.
        last_epoch: as in ``LRScheduler``.

    Raises:
        ValueError: an option is out of range, a list has a wrong length, there is no momentum, or
            more steps are made than there are.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked(optimizer)
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._schedule_phases = _phases(self.total_steps, pct_start, three_phase)
        self._anneal_func_type = anneal_strategy
        max_lrs = one_each("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, top in zip(optimizer.param_groups, max_lrs, strict=True):
                group["initial_lr"] = top / div_factor
                group["max_lr"] = top
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        self._expect_step()
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        start = 0.0
        for phase in self._schedule_phases:
            if self.last_epoch <= phase["end_step"] or phase is self._schedule_phases[-1]:
                break
            start = phase["end_step"]
        share = (self.last_epoch - start) / (phase["end_step"] - start)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group, phase["start_lr"], phase["end_lr"], share))
            if self.cycle_momentum:
                names = phase["start_momentum"], phase["end_momentum"]
                self._set_momentum(group, self._between(group, *names, share))
        return rates

    def _between(self, group: ParamGroup, start_name: str, end_name: str, share: float) -> float:
        """The value at ``share`` of the way from one option of the group to another."""
        start, end = group[start_name], group[end_name]
        if self._anneal_func_type == "linear":
            return float((end - start) * share + start)
        return float(end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1))


def _total_steps(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    given = {"total_steps": total_steps}
    if total_steps is None:
        given = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
    if None in given.values():
        raise ValueError(
            "You must define either total_steps OR (epochs AND steps_per_epoch) of OneCycleLR"
        )
    for name, value in given.items():
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {value}")
    return math.prod(value for value in given.values() if value is not None)


def _phases(total_steps: int, pct_start: float, three_phase: bool) -> list[dict[str, Any]]:
    """The start and end of each phase, as names of options of a group, and its last step."""
    top = pct_start * total_steps - 1
    if three_phase:
        ends = [
            (top, "max_lr", "base_momentum"),
            (2 * pct_start * total_steps - 2, "initial_lr", "max_momentum"),
            (total_steps - 1, "min_lr", "max_momentum"),
        ]
    else:
        ends = [(top, "max_lr", "base_momentum"), (total_steps - 1, "min_lr", "max_momentum")]
    phases = []
    lr, momentum = "initial_lr", "max_momentum"
    for end_step, end_lr, end_momentum in ends:
        phases.append(
            {
                "end_step": end_step,
                "start_lr": lr,
                "end_lr": end_lr,
                "start_momentum": momentum,
                "end_momentum": end_momentum,
            }
        )
        lr, momentum = end_lr, end_momentum
    return phases
