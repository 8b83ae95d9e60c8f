"""A running backward: the state of its thread, nesting, and the undo of a failure.

Not here: processes; autograd knows the engine by ``engine_slot`` only. Begin with
``running_backward``.
"""
