"""Derivatives of derivatives: the graph that ``create_graph=True`` records."""
