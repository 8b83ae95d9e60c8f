"""Imports every operator family, so that ``registry.OPERATORS`` is complete: for workers, too."""

from __future__ import annotations

from mpgrad.ops.by_index import indexing, overwriting, scatter_reductions  # noqa: F401
from mpgrad.ops.calling import promotion  # noqa: F401
from mpgrad.ops.elementwise import (  # noqa: F401
    arithmetic,
    bit_patterns,
    complex_numbers,
    minimum_maximum,
    piecewise,
    rounding,
    signs_and_remainders,
    special,
    transcendental,
)
from mpgrad.ops.linear_algebra import (  # noqa: F401
    factorizations,
    linear_systems,
    lu,
    matrices,
    matrix_products,
    norms,
)
from mpgrad.ops.neural import (  # noqa: F401
    activation,
    composed_activations,
    convolution,
    dropout,
    embedding,
    group_norm,
    loss,
    normalization,
    pooling,
    recurrent_layers,
    regression_loss,
)
from mpgrad.ops.reductions import (  # noqa: F401
    counting,
    extrema,
    order_statistics,
    products,
    reduction,
    running_logarithms,
)
from mpgrad.ops.shapes import shape, windows_and_slices  # noqa: F401
from mpgrad.ops.signals import fourier  # noqa: F401
