"""Operators of neural networks: activations, convolution, pooling, normalization, losses.

Not here: Modules and parameters (``mpgrad.nn``). Begin with ``activation``.
"""
