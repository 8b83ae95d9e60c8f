"""A recorded graph as tables: the Nodes that run, their order, and their costs."""
