"""Calls of operators: the backend, the forward, the Node.

Not here: the operators themselves (``ops``). Begin with ``operator_call``.
"""
