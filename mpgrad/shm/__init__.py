"""Shared memory on the host: anonymous segments, the blocks in them, and arrays over the blocks.

It knows no tensor, no graph and no message. ``free_list``, ``segment`` and ``backing`` do not load
NumPy, so that the coordinator can use them. Begin with ``arena``.
"""
