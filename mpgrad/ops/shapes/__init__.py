"""Operators that put elements in other places: shapes, tiles, windows, joined tensors.

Not here: elements by index or mask (``ops.by_index``). Begin with ``shape``.
"""
