"""Optimizers: they update parameters in place from their ``.grad``."""

from __future__ import annotations

from mpgrad.missing_names import missing_from as _missing_from
from mpgrad.optim.adam import Adam, AdamW
from mpgrad.optim.optimizer import Optimizer
from mpgrad.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]

__getattr__ = _missing_from(__name__)
