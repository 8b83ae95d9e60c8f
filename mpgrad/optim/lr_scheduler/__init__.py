"""Learning rate schedulers: each ``step()`` sets the learning rates of an optimizer.

Not here: the steps of parameters. Begin with ``scheduler``.
"""

from __future__ import annotations

from mpgrad.optim.lr_scheduler.annealing import CosineAnnealingLR, CosineAnnealingWarmRestarts
from mpgrad.optim.lr_scheduler.composition import ChainedScheduler, SequentialLR
from mpgrad.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from mpgrad.optim.lr_scheduler.decay import (
    ConstantLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from mpgrad.optim.lr_scheduler.lambdas import LambdaLR, MultiplicativeLR
from mpgrad.optim.lr_scheduler.plateau import ReduceLROnPlateau
from mpgrad.optim.lr_scheduler.scheduler import LRScheduler
from mpgrad.optim.lr_scheduler.scheduler import LRScheduler as _LRScheduler  # noqa: F401

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
