"""parallel_map(), fork() and wait() for torch's tensors; doctor()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from mpgrad.parallel.forks import ForkFuture, fork_of
from mpgrad.parallel.forks import wait as wait
from mpgrad.parallel.maps import map_of
from mpgrad.torch.branch_nodes import HAS_NUMBERS, stop_left_behind
from mpgrad.torch.tensors import LIBRARY, PARAMETERS


def parallel_map(
    fn: Callable[..., Any],
    *iterables: Iterable[Any],
    shared: Sequence[Any] | Mapping[str, Any] = (),
    out: str = "list",
    chunks: int | None = None,
    changes: Sequence[str] = (),
    retries: int = 0,
) -> Any:
    """``[fn(*item, *shared) for item in zip(*iterables)]`` of torch, forward and backward in
    mpgrad's workers.

    Arguments, results and errors are those of ``mpgrad.parallel_map``. Every torch tensor that
    ``fn`` reaches, at any depth of its arguments, its closure or a Module, is an input of the
    branch and gets its gradient. Each branch is recorded in the worker that ran it, and
    differentiated there while torch's own backward runs here.

    Raises:
        TypeError: something cannot travel (a subclass of Tensor, a sparse, quantized, nested or
            meta tensor, a tensor of another device); the error names it and the remedy.
    """
    stop_left_behind()
    return map_of(LIBRARY, fn, iterables, shared, out, chunks, changes, retries)


def fork(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ForkFuture:
    """Begin ``fn(*args, **kwargs)`` in a worker, recorded there, and go on: see ``mpgrad.fork``.

    Returns:
        A Future; ``wait(future)`` is ``future.result()``.

    Raises:
        TypeError: something cannot travel; the error names it.
    """
    stop_left_behind()
    return fork_of(LIBRARY, fn, args, kwargs)


def doctor() -> list[str]:
    """What of this program and its PyTorch keeps mpgrad.torch from its best, in words; empty:
    nothing."""
    found = []
    if not HAS_NUMBERS:
        found.append(
            f"PyTorch {torch.__version__} does not let Nodes change their place in the engine's "
            "queue (_set_sequence_nr): the backward of branches that are called one after another "
            "is right, but runs one after another"
        )
    for tensor, reason in PARAMETERS.copied():
        found.append(
            f"each call copies a parameter of shape {list(tensor.shape)} "
            f"({tensor.nbytes / 2**20:.3g} MiB), because it {reason}"
        )
    return found
