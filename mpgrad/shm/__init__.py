"""Shared memory on the host: anonymous segments, the blocks in them, and arrays over the blocks.

Knows no tensor, no graph and no message; ``free_list``, ``segment`` and ``backing`` load no NumPy,
so that the coordinator can use them.
"""
