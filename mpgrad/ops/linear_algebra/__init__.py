"""Operators on matrices: products, factorizations, equations and norms."""
