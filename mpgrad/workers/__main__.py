"""The entry of a worker process, see ``base.interpreter``."""

from __future__ import annotations

from mpgrad.workers import worker_process


def main(setup: bytes) -> None:
    """Run a worker until it is told to stop."""
    worker_process.main(setup, load_tensors)


def load_tensors() -> None:
    """Load Tensor with its methods, because user code in rules may use all of them."""
    import mpgrad.tensor_methods  # noqa: F401
