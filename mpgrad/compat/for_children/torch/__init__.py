"""``import torch`` in a process that multiprocessing has started in a program for PyTorch.

Such a process gets its parent's ``sys.path``, and imports the program before anything else. Not
here: any name of PyTorch.
"""

from __future__ import annotations

import importlib
import sys

from mpgrad.compat.stand_in import install

install()
del sys.modules[__name__]
importlib.import_module(__name__)
