"""Messages between processes: their types, their bytes, and the lanes on which they travel.

Not here: decisions about messages (``scheduler``). Begin with ``schema``.
"""
