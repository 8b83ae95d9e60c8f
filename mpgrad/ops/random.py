"""Random tensors, drawn from the process's generator or from the one that is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import value_check
from mpgrad.arrays.cuda.device_arrays import moved, moved_beside, on_host, on_its_device, usable
from mpgrad.base.dtype import default_float
from mpgrad.base.memory_formats import MemoryFormat, preserve_format
from mpgrad.ops.by_index.overwriting import _bernoulli
from mpgrad.ops.calling.promotion import stored
from mpgrad.ops.generators import default_generator, takes_generator
from mpgrad.ops.new_tensors.creation import shape_from
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.tensors import storage
from mpgrad.recording.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def fill_uniform(array: Array, low: float = 0.0, high: float = 1.0) -> None:
    """Overwrite ``array`` with draws from the uniform distribution on [``low``, ``high``).

    Raises:
        NotImplementedError: the elements are integers or booleans.
        RuntimeError: ``low`` is greater than ``high``.
    """
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    draws = _drawn(default_generator().random, array)
    _write(array, draws * (high - low) + low)


def fill_normal(array: Array, mean: float = 0.0, std: float = 1.0) -> None:
    """Overwrite ``array`` with draws from the normal distribution.

    Raises:
        NotImplementedError: the elements are integers or booleans.
        RuntimeError: ``std`` is negative.
    """
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    draws = _drawn(default_generator().standard_normal, array)
    # The variance of complex numbers is that of both parts together.
    spread = std * 0.5**0.5 if array.dtype.kind == "c" else std
    _write(array, draws * spread + mean)


def fill_bernoulli(array: Array, probability: Any) -> None:
    """Overwrite ``array`` with 1 where a draw is below ``probability``, else with 0.

    Args:
        array: what to overwrite.
        probability: a number, or an array of the host that broadcasts to ``array``.

    Raises:
        RuntimeError: it is no probability.
    """
    check_probability(probability)
    draws = default_generator().random(array.shape, np.float32)
    _write(array, np.less(draws, probability).astype(array.dtype))


@value_check
def check_probability(probability: Any) -> None:
    """Check the elements of ``probability``.

    Raises:
        RuntimeError: an element is outside [0, 1].
    """
    if not np.all((np.asarray(probability) >= 0) & (np.asarray(probability) <= 1)):
        raise RuntimeError(f"bernoulli expects p to be in [0, 1], but got p={probability}")


def fill_integers(array: Array, low: int, high: int | None) -> None:
    """Overwrite ``array`` with integers from [``low``, ``high``).

    Args:
        array: what to overwrite.
        low: the least integer.
        high: above the greatest; None: the greatest is the largest integer of the dtype, of
            floating dtypes the largest up to which they have all.

    Raises:
        RuntimeError: there is no such integer, or the dtype cannot hold one of them.
    """
    dtype = array.dtype
    if high is None:
        high = 1 + _largest(dtype)
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    for limit in (low, high - 1):
        stored(limit, dtype)
    _write(array, default_generator().integers(low, high, array.shape, np.int64).astype(dtype))


def _largest(dtype: np.dtype[Any]) -> int:
    if dtype.kind == "f":
        return 2 ** (np.finfo(dtype).nmant + 1)
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 1


def fill_exponential(array: Array, rate: float) -> None:
    """Overwrite ``array`` with draws from the exponential distribution of that ``rate``.

    Raises:
        NotImplementedError: the elements are not floating.
    """
    _check_floating("exponential_", array)
    _write(array, _drawn(default_generator().standard_exponential, array) / rate)


def fill_cauchy(array: Array, median: float, sigma: float) -> None:
    """Overwrite ``array`` with draws from Cauchy's distribution.

    Raises:
        NotImplementedError: the elements are not floating.
    """
    _check_floating("cauchy_", array)
    _write(array, default_generator().standard_cauchy(array.shape) * sigma + median)


def fill_log_normal(array: Array, mean: float, std: float) -> None:
    """Overwrite ``array`` with exponentials of draws from the normal distribution.

    Raises:
        NotImplementedError: the elements are not floating.
    """
    _check_floating("log_normal_", array)
    _write(array, np.exp(default_generator().standard_normal(array.shape) * std + mean))


def fill_geometric(array: Array, probability: float) -> None:
    """Overwrite ``array`` with numbers of trials up to the first success, from 1."""
    if array.dtype.kind in "bc":
        raise NotImplementedError(f"geometric_ is not implemented for {array.dtype}")
    _write(array, default_generator().geometric(probability, array.shape))


def _check_floating(name: str, array: Array) -> None:
    if array.dtype.kind != "f":
        raise NotImplementedError(f"{name} is not implemented for {array.dtype}")


def _write(array: Array, values: Any) -> None:
    """Copy values from the host into ``array`` on any device: the draws are the same."""
    with on_its_device(array):
        # Without dimensions NumPy draws a number.
        drawn = values if isinstance(values, np.ndarray) else np.asarray(values)
        array[...] = moved_beside(drawn, array)


def bernoulli_mask(shape: tuple[int, ...], probability: float) -> Array:
    """A boolean array whose elements are true with ``probability``."""
    mask = storage.empty(shape, bool)
    np.less(default_generator().random(shape, np.float32), probability, out=mask)
    return mask


@takes_generator
def bernoulli(input: Tensor) -> Tensor:
    """1 with the probability in the element of ``input``, else 0; its gradient is 0.

    Raises:
        RuntimeError: an element is no probability.
    """
    draws = storage.empty(input.shape, input.dtype, input.device)
    fill_bernoulli(draws, on_host(input._array))
    return call(_bernoulli, input, Tensor(draws))  # type: ignore[no-any-return]


@takes_generator
def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Draws from normal distributions, without a derivative.

    Args:
        mean, std: tensors, or one of them, of which the other one is a number; or two numbers ...
        size: ... and the shape of the result.
        dtype, device, requires_grad: of a result of that shape.

    Raises:
        RuntimeError: an element of ``std`` is negative.
        TypeError: there is neither a tensor nor a ``size``.
    """
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    if tensors and size is not None:
        raise TypeError("normal() takes a size with two numbers only: tensors have their own")
    if not tensors:
        if size is None:
            raise TypeError("normal() of two numbers needs a size")
        draws = _filled(fill_normal, shape_from((size,)), dtype, device, False)
        fill_normal(draws._array, mean, std)
        return draws.requires_grad_(requires_grad)
    center, spread = (
        on_host(value._array) if isinstance(value, Tensor) else value for value in (mean, std)
    )
    if np.any(np.less(spread, 0)):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    drawn = randn(shape, dtype=tensors[0].dtype, device=tensors[0].device)
    _write(drawn._array, on_host(drawn._array) * spread + center)
    return drawn


@takes_generator
def poisson(input: Tensor) -> Tensor:
    """Draws from Poisson distributions with these rates, without a derivative.

    Raises:
        RuntimeError: a rate is negative.
    """
    rates = on_host(input._array)
    if np.any(rates < 0):
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    draws = np.asarray(default_generator().poisson(rates), input.dtype)
    return Tensor(moved(draws, input.device))


@takes_generator
def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Indices drawn with the probabilities that ``input`` is proportional to, int64.

    Args:
        input: weights of shape (outcomes,) or (rows, outcomes).
        num_samples: how many to draw of each row.
        replacement: an outcome may be drawn again.

    Raises:
        RuntimeError: ``input`` has other dimensions, weights are negative, not finite or zero in
            sum, or there are fewer than ``num_samples`` outcomes.
    """
    if not input.dtype.is_floating_point:
        raise RuntimeError(
            f"multinomial only supports floating-point dtypes for input, got: {input.dtype}"
        )
    weights = np.asarray(on_host(input._array), np.float64)
    if weights.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    rows = weights.reshape(-1, weights.shape[-1])
    if not np.all(np.isfinite(rows)) or np.any(rows < 0):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if np.any(rows.sum(1) <= 0):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > rows.shape[1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    if replacement:
        choose = default_generator().choice
        drawn = np.array([choose(rows.shape[1], num_samples, p=row / row.sum()) for row in rows])
    else:
        # The first arrivals of Poisson processes with these rates.
        arrivals = rows / default_generator().standard_exponential(rows.shape)
        drawn = np.argsort(-arrivals, 1, kind="stable")[:, :num_samples]
    places = drawn.astype(np.int64).reshape(*weights.shape[:-1], num_samples)
    return Tensor(moved(places, input.device))


@takes_generator
def rand(
    *shape: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform on [0, 1), of that shape."""
    return _filled(fill_uniform, shape_from(shape, size), dtype, device, requires_grad)


@takes_generator
def randn(
    *shape: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal, of that shape."""
    return _filled(fill_normal, shape_from(shape, size), dtype, device, requires_grad)


@takes_generator
def rand_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = preserve_format,
) -> Tensor:
    """Uniform on [0, 1), of the shape, dtype and device of ``input``."""
    place = input.device if device is None else device
    return rand(input.shape, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad)


@takes_generator
def randn_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = preserve_format,
) -> Tensor:
    """Standard normal, of the shape, dtype and device of ``input``."""
    place = input.device if device is None else device
    return randn(input.shape, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad)


@takes_generator
def randint(
    low: Any = None,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = np.int64,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from [``low``, ``high``), or from [0, ``high``) as ``randint(high, size)``.

    Raises:
        TypeError: ``high`` or ``size`` is missing.
        RuntimeError: there is no such integer, or ``dtype`` cannot hold one of them.
    """
    if size is None:
        low, high, size = None, low, high
    low, high = (None, low) if high is None else (low, high)
    if high is None or size is None:
        raise TypeError("randint() needs a size, and the number `high` below which integers lie")
    low = 0 if low is None else low
    array = storage.empty(shape_from((size,)), dtype or np.int64)
    fill_integers(array, low, high)
    return Tensor(moved(array, usable(device))).requires_grad_(requires_grad)


@takes_generator
def randint_like(
    input: Tensor,
    low: Any = None,
    high: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = preserve_format,
) -> Tensor:
    """Integers from [``low``, ``high``), of the shape, dtype and device of ``input``."""
    place = input.device if device is None else device
    dtype = dtype or input.dtype
    return randint(low, high, input.shape, dtype=dtype, device=place, requires_grad=requires_grad)


@takes_generator
def randperm(
    n: int, *, dtype: Any = np.int64, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A random permutation of 0 .. n - 1.

    Raises:
        RuntimeError: ``n`` is negative.
    """
    (length,) = shape_from((n,))
    order = default_generator().permutation(length).astype(dtype or np.int64)
    return Tensor(moved(order, usable(device))).requires_grad_(requires_grad)


def _filled(
    fill: Any, shape: tuple[int, ...], dtype: Any, device: Any, requires_grad: bool
) -> Tensor:
    array = storage.empty(shape, dtype or default_float(), usable(device))
    fill(array)
    return Tensor(array).requires_grad_(requires_grad)


def _drawn(draw: Callable[..., Any], array: Array) -> Any:
    """Draws for ``array``; of complex numbers for both parts.

    Raises:
        NotImplementedError: the elements are neither floating nor complex.
    """
    dtype = array.dtype
    if dtype.kind == "c":
        return draw((*array.shape, 2), dtype.type(0).real.dtype).view(dtype)[..., 0]
    if dtype.kind != "f":
        raise NotImplementedError(f"random numbers are not implemented for {dtype}")
    # NumPy draws in these two precisions only.
    return draw(array.shape, np.float64 if dtype == np.float64 else np.float32)
