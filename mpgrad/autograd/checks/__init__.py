"""The parts of ``gradcheck``: Jacobians and their comparison.

Not here: the function itself, which users call (``mpgrad.autograd.gradcheck``). Begin with
``jacobians``.
"""
