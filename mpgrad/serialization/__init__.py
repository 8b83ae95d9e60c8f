"""``mg.save`` and ``mg.load``: tensors and objects that contain them, in files.

Not here: pickles between processes (``wire``, ``calls``). Begin with ``files``.
"""

from mpgrad.serialization.files import load, save

__all__ = ["load", "save"]
