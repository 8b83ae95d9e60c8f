"""Tensors that share memory, and recorded changes in place."""
