"""Operators that put elements in other places: shapes, tiles, windows, joined tensors."""
