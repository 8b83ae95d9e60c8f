"""Both passes of independent branches on all cores: ``parallel_map``, ``fork`` and ``wait``.

``maps`` makes Calls of a function and its items, and the results of their answers; ``placing``
decides where they run. What a BranchCall is, and how a branch is recorded, is in ``mpgrad.calls``.
"""
