"""``torch.optim.swa_utils``: averages of a model over the steps of its training.

Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from mpgrad.nn.batch_norm import BatchNorm
from mpgrad.nn.module import Module
from mpgrad.ops.new_tensors.creation import zeros
from mpgrad.optim.lr_scheduler import LRScheduler
from mpgrad.optim.lr_scheduler.scheduler import one_each
from mpgrad.optim.optimizer import Optimizer
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

#: ``(average, new, how many the average is of) -> average``.
Average = Callable[[Tensor, Tensor, Any], Tensor]
#: The same of many tensors, in place.
AverageAll = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """The exponential average: ``decay * average + (1 - decay) * new``."""
    return no_grad()(lambda average, new, count: decay * average + (1 - decay) * new)


def get_swa_avg_fn() -> Average:
    """The plain average."""
    return no_grad()(lambda average, new, count: average + (new - average) / (count + 1))


def get_ema_multi_avg_fn(decay: float = 0.999) -> AverageAll:
    """``get_ema_avg_fn`` for many tensors."""
    return _of_all(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> AverageAll:
    """``get_swa_avg_fn`` for many tensors."""
    return _of_all(get_swa_avg_fn())


def _of_all(average: Average) -> AverageAll:
    @no_grad()
    def update(averages: Sequence[Tensor], new: Sequence[Tensor], count: Any) -> None:
        for mean, value in zip(averages, new, strict=True):
            mean.copy_(average(mean, value, count))

    return update


class AveragedModel(Module):
    """A copy of ``model`` whose parameters are averages; ``update_parameters`` adds to them.

    Args:
        model: what is averaged; a copy is kept.
        device: of the copy.
        avg_fn: the average of one parameter; the plain one by default.
        multi_avg_fn: of all, in place of ``avg_fn``.
        use_buffers: average the buffers, too; else they become those of the model.
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: AverageAll | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        assert avg_fn is None or multi_avg_fn is None, (
            "Only one of avg_fn and multi_avg_fn should be provided"
        )
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", zeros((), dtype="int64", device=device))
        self.avg_fn, self.multi_avg_fn = avg_fn, multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model gives."""
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Take the parameters of ``model`` into the averages."""
        averages, new = (_tensors(it, self.use_buffers) for it in (self.module, model))
        if self.n_averaged == 0:
            for mean, value in zip(averages, new, strict=True):
                mean.copy_(value)
        else:
            update = self.multi_avg_fn or _of_all(self.avg_fn or get_swa_avg_fn())
            update(averages, new, self.n_averaged)
        if not self.use_buffers:
            for mean, value in zip(self.module.buffers(), model.buffers(), strict=True):
                mean.copy_(value)
        self.n_averaged.add_(1)


def _tensors(model: Module, with_buffers: bool) -> list[Tensor]:
    return [*model.parameters(), *(model.buffers() if with_buffers else ())]


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Let the running statistics of all batch normalisations be plain averages over ``loader``.

    Args:
        loader: gives inputs, or tuples that begin with them.
        model: is run on each input, in training mode.
        device: of the inputs.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    before = [layer.momentum for layer in layers]
    was_training = model.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    model.train()
    for batch in loader if layers else ():
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        model(inputs if device is None else inputs.to(device))
    for layer, momentum in zip(layers, before, strict=True):
        layer.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Leads the learning rates to ``swa_lr`` within ``anneal_epochs``, and leaves them there.

    Args:
        optimizer: whose groups get new learning rates.
        swa_lr: the last one, or one for each group.
        anneal_epochs: how many epochs it takes.
        anneal_strategy: along a half period of a cosine, or along a line.
        last_epoch: as in ``LRScheduler``.

    Raises:
        ValueError: an option is out of range, or ``swa_lr`` has a wrong length.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        rates = one_each("swa_lr", optimizer, swa_lr)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """The weight of the last learning rate after so many epochs."""
        done = min(max(step / max(1, self.anneal_epochs), 0.0), 1.0)
        return (1 - math.cos(math.pi * done)) / 2 if self.anneal_strategy == "cos" else done

    def get_lr(self) -> list[float]:
        """The learning rates of this epoch."""
        step = self._step_count - 1
        step = max(1, step) if self.anneal_epochs == 0 else step
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            last, rate = group["swa_lr"], group["lr"]
            first = rate if before == 1 else (rate - last * before) / (1 - before)
            rates.append(last * now + first * (1 - now))
        return rates
