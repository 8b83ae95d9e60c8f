"""Operators with an index or a mask: picking, overwriting and scattering elements.

Not here: views and shapes (``ops.shapes``). Begin with ``indexing``.
"""
