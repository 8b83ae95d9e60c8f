"""``mg.save`` and ``mg.load``: tensors and objects that contain them, in files."""

from mpgrad.serialization.files import load, save

__all__ = ["load", "save"]
