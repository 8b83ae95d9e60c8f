"""Operators that make few elements of many: sums, extrema, orders, quantiles, counts.

Not here: norms and products of matrices (``ops.linear_algebra``). Begin with ``reduction``.
"""
