"""Whether ``torch`` is PyTorch. Importing this module raises ImportError if it is not."""

from __future__ import annotations

from mpgrad.autograd.function import Function

try:
    import torch
except ImportError as error:
    raise ImportError(
        "mpgrad.torch works inside of PyTorch programs and needs PyTorch: pip install "
        f"'mpgrad[torch]' ({error})"
    ) from error

if torch.autograd.Function is Function:
    raise ImportError(
        "mpgrad.torch works inside of PyTorch programs; under `mpgrad compat` torch is mpgrad "
        "itself: use mpgrad.parallel_map, mpgrad.fork and mpgrad.nn.DataParallel"
    )
