"""``python -m mpgrad.workers FD``: the entry of a worker process."""

from __future__ import annotations

import sys

from mpgrad.workers.worker_process import main


def load_tensors() -> None:
    """Tensor with its methods: rules of the user may use them all."""
    import mpgrad.tensor_methods  # noqa: F401


main(int(sys.argv[1]), load_tensors)
