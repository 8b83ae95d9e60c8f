"""Operators on each element alone: arithmetic, exponentials, comparisons, special functions."""
