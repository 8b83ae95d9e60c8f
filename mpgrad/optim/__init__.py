"""Optimizers: they update parameters in place from their ``.grad``."""

from __future__ import annotations

from mpgrad.optim import lr_scheduler
from mpgrad.optim.adam import Adam, AdamW
from mpgrad.optim.optimizer import Optimizer
from mpgrad.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]
