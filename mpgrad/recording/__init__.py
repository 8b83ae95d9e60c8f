"""What a forward records: Tensor, its memory, Nodes, and the one way to every operator.

Not here: the run of a backward (``autograd``), and the operators (``ops``). Begin with
``dispatch.operator_call``.
"""
