"""Operators of neural networks: activations, convolution, pooling, normalization, losses."""
