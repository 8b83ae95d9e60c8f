"""In-place methods of Tensor that draw random numbers: ``uniform_``, ``normal_`` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpgrad.arrays.cuda.device_arrays import on_host
from mpgrad.ops import random
from mpgrad.ops.by_index import overwriting
from mpgrad.ops.generators import takes_generator
from mpgrad.recording.dispatch.in_place import call_in_place
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.tensor import Tensor


def uniform_(self: Tensor, from_: float = 0.0, to: float = 1.0) -> Tensor:
    """Overwrite with draws from the uniform distribution on [``from_``, ``to``)."""
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_uniform(draws, from_, to)
    return call_in_place(overwriting._uniform, self, Tensor(draws))


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Overwrite with draws from the normal distribution."""
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_normal(draws, mean, std)
    return call_in_place(overwriting._normal, self, Tensor(draws))


def bernoulli_(self: Tensor, p: Any = 0.5) -> Tensor:
    """Overwrite with 1 with probability ``p`` (a number or a Tensor), else with 0.

    Raises:
        RuntimeError: ``p`` is not a probability.
    """
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_bernoulli(draws, on_host(p._array) if isinstance(p, Tensor) else p)
    return call_in_place(overwriting._bernoulli, self, Tensor(draws))


def random_(self: Tensor, from_: int = 0, to: int | None = None) -> Tensor:
    """Overwrite with integers from [``from_``, ``to``), or [0, ``from_``) as ``random_(to)``.

    Without bounds they range from 0 to the largest integer of the dtype; for a floating dtype, to
    the largest one up to which it represents all integers.

    Raises:
        RuntimeError: there is no such integer, or the dtype cannot hold one of them.
    """
    if to is None and from_ != 0:
        from_, to = 0, from_
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_integers(draws, from_, to)
    return call_in_place(overwriting._random, self, Tensor(draws))


def exponential_(self: Tensor, lambd: float = 1.0) -> Tensor:
    """Overwrite with draws from the exponential distribution with rate ``lambd``.

    Raises:
        RuntimeError: ``lambd`` is not positive.
    """
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_exponential(draws, lambd)
    return call_in_place(overwriting._exponential, self, Tensor(draws))


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """Overwrite with draws from Cauchy's distribution.

    Raises:
        RuntimeError: ``sigma`` is not positive.
    """
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_cauchy(draws, median, sigma)
    return call_in_place(overwriting._cauchy, self, Tensor(draws))


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    """Overwrite with exponentials of draws from the normal distribution.

    Raises:
        RuntimeError: ``std`` is not positive.
    """
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_log_normal(draws, mean, std)
    return call_in_place(overwriting._log_normal, self, Tensor(draws))


def geometric_(self: Tensor, p: float) -> Tensor:
    """Overwrite with the numbers of trials up to the first success, of probability ``p``.

    Raises:
        RuntimeError: ``p`` is not in (0, 1).
    """
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    draws = storage.empty(self.shape, self.dtype, self.device)
    random.fill_geometric(draws, p)
    return call_in_place(overwriting._geometric, self, Tensor(draws))


METHODS: dict[str, Callable[..., Any]] = {
    method.__name__: takes_generator(method)
    for method in (
        *(uniform_, normal_, bernoulli_, random_, exponential_),
        *(cauchy_, log_normal_, geometric_),
    )
}
