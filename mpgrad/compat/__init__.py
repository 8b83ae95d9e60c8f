"""PyTorch's names for mpgrad: ``import mpgrad.compat.torch as torch``, ``mpgrad compat run``."""
