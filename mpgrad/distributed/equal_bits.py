"""What decides how the numbers of a rank round: two ranks that differ in it may have other bits."""

from __future__ import annotations

import numpy as np

from mpgrad.base.machine import processor_name
from mpgrad.engine.blas import blas_of_arrays


def arithmetic_of_this_process() -> tuple[tuple[str, str], ...]:
    """(what, which), in the same order everywhere."""
    blas, threads = blas_of_arrays()
    return (
        ("the processor", processor_name()),
        ("the NumPy", np.__version__),
        ("the BLAS", blas),
        ("the number of BLAS threads", str(threads)),
    )
