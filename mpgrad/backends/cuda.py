"""mpgrad.backends.cuda: how GPUs multiply matrices, under PyTorch's names."""

from mpgrad.backends.matmul_precision import matmul as matmul
