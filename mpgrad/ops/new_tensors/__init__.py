"""Tensors from data, from other libraries and on other devices.

Not here: random ones (``ops.random``), and copies of Tensors (``tensor_methods.copies``). Begin
with ``creation``.
"""
