"""The functions of the array namespace on NumPy arrays.

Not here: Tensors, derivatives, GPUs, processes. Begin with ``cpu_backend``.
"""
