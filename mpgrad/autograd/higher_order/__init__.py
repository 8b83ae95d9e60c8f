"""Derivatives of derivatives: the graph that ``create_graph=True`` records.

Not here: the formulas, which are those of ``ops``. Begin with ``recording``.
"""
