"""The parts of ``Function``: its ctx, its Node, and the outputs of its forward.

Not here: which Functions workers may run (see ``calls.custom_functions``). Begin with
``function_node``.
"""
