"""``mg.compile``: functions of Tensors as straight-line programs of NumPy calls.

Not here: the source of a backward alone (``engine.graph_source``). Begin with ``compile``.
"""
