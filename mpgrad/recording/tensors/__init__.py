"""Tensor, its memory and versions, its views, and saved tensors.

Not here: operators and methods that need them (``tensor_methods``). Begin with ``tensor``.
"""
