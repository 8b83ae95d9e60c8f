"""mpgrad.backends.cuda: the precision of matrix products on GPUs, under PyTorch's names."""

from mpgrad.backends.matmul_precision import matmul as matmul
