"""Tensor, its memory and versions, its views, and saved tensors."""
