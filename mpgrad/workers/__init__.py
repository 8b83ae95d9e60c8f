"""The worker processes that run NodeTasks.

Not here: the loop over Nodes, which is the same in every process (``autograd.running.node_loop``).
Begin with ``worker``.
"""
