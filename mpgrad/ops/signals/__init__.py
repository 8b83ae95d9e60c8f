"""Operators on signals: Fourier transforms and windows.

Not here: convolutions (``ops.neural``). Begin with ``fourier``.
"""
