"""Operators that make few elements of many: sums, extrema, orders, quantiles, counts."""
