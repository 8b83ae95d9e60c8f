"""Tensors from data, from other libraries and on other devices."""
