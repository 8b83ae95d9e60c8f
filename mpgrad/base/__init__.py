"""Basic types, settings, and facts about the machine.

It knows nothing of arrays, graphs or messages, and most of it loads the standard library only.
Begin with ``config``.
"""
