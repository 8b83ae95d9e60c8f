"""The operators: each forward and its derivative formulas, family by family."""
