"""Tensor, its memory and versions, its views, and what Nodes keep of it."""
