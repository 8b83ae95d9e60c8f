"""The parts of a recorded graph: operators, Nodes, hooks, modes.

It knows no Tensor. Begin with ``node``.
"""
