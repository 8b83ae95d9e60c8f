"""Hooks for ``DistributedDataParallel.register_comm_hook``.

Not here: when gradients travel (``distributed.reducer``). Begin with ``default_hooks``.
"""
