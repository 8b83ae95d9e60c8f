"""Operators with an index or a mask: picking, overwriting and scattering elements."""
