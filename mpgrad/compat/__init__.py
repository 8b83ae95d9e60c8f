"""PyTorch's names for mpgrad: ``import mpgrad.compat.torch as torch``, ``mpgrad compat run``.

Not here: functions that mpgrad should have itself. They belong to its own modules. Begin with
``torch``.
"""
