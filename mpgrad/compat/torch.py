"""mpgrad under PyTorch's names and module paths: ``import mpgrad.compat.torch as torch``."""

from __future__ import annotations

import importlib
import sys

import mpgrad.compat.stand_in  # noqa: F401  (finds the module that replaces this file)

del sys.modules[__name__]
importlib.import_module(__name__)
