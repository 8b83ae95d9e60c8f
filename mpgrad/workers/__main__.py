"""``python -m mpgrad.workers FD``: the entry of a worker process."""

from __future__ import annotations

import sys

from mpgrad.workers.worker_process import main


def load_tensors() -> None:
    """Load Tensor with its methods, because user code in rules may use all of them."""
    import mpgrad.tensor_methods  # noqa: F401


main(int(sys.argv[1]), load_tensors)
