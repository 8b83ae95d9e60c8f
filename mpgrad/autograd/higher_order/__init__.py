"""Derivatives of derivatives: what ``create_graph=True`` records."""
