"""A recorded graph as tables: the Nodes that run, their order, and their costs.

Not here: the run of a graph, and where it runs. Begin with ``freeze``.
"""
