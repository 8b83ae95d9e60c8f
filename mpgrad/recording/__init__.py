"""What a forward records: Tensor, its memory, Nodes, and the one way to every operator.

``graph`` has Nodes, hooks, modes and the registry of operators, ``tensors`` Tensor, views, saved
tensors and AccumulateGrad, ``dispatch`` the call of an operator. Nothing here runs a backward
(see ``autograd``) or computes an operator (see ``ops``). Begin with
``recording.dispatch.operator_call``.
"""
