"""Optimizers: they update parameters in place from their ``.grad``.

Not here: anything that is recorded: a step has no derivative. Begin with ``optimizer``.
"""

from __future__ import annotations

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.optim import lr_scheduler
from mpgrad.optim.adadelta import Adadelta
from mpgrad.optim.adafactor import Adafactor
from mpgrad.optim.adagrad import Adagrad
from mpgrad.optim.adam import Adam, AdamW
from mpgrad.optim.adamax import Adamax
from mpgrad.optim.asgd import ASGD
from mpgrad.optim.lbfgs import LBFGS
from mpgrad.optim.muon import Muon
from mpgrad.optim.nadam import NAdam
from mpgrad.optim.optimizer import Optimizer
from mpgrad.optim.radam import RAdam
from mpgrad.optim.rmsprop import RMSprop
from mpgrad.optim.rprop import Rprop
from mpgrad.optim.sgd import SGD

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
]

__getattr__ = _missing_from(__name__)
