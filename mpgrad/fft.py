"""``mg.fft``: PyTorch's names for Fourier transforms."""

from __future__ import annotations

# Functions return Tensors, which must have their methods.
import mpgrad.tensor_methods  # noqa: F401  isort: skip

from mpgrad.base.missing_names import missing_from as _missing_from
from mpgrad.ops.calling.out_argument import publish as _publish
from mpgrad.ops.signals.fourier import *  # noqa: F403
from mpgrad.ops.signals.fourier import __all__

_publish(globals(), __all__, __all__)

__getattr__ = _missing_from(__name__)
