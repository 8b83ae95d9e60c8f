"""Operators on each element alone: arithmetic, exponentials, comparisons, special functions.

Not here: sums and other operators that look at several elements. Begin with ``arithmetic``.
"""
