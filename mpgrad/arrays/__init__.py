"""Arrays and the functions on them: of the CPU (NumPy), of GPUs (CuPy), and traced ones.

All three have the namespace that ``mpgrad.backends`` lists. Not here: Tensors and derivatives.
Begin with ``cpu``.
"""
