"""Operators on matrices: products, factorizations, equations and norms.

Not here: LAPACK and BLAS themselves (``arrays.cpu.cpu_matrices``). Begin with ``matrix_products``.
"""
