"""Random tensors, all from one NumPy generator per process, which ``manual_seed`` resets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpgrad import storage
from mpgrad.device_arrays import device_of, moved, on, on_host, usable
from mpgrad.dispatch import call
from mpgrad.dtype import default_float
from mpgrad.ops.creation import shape_from
from mpgrad.ops.overwriting import _bernoulli
from mpgrad.ops.promotion import stored
from mpgrad.tensor import Tensor

Array = np.ndarray[Any, Any]


#: The parts of a PCG64 generator's state (NumPy's names), and how many bytes each takes.
_STATE_BYTES = {"state": 16, "inc": 16, "has_uint32": 1, "uinteger": 4}


class _State:
    #: Made on first use: loading ``numpy.random`` takes a third of the time of importing mpgrad.
    generator: np.random.Generator | None = None


def manual_seed(seed: int) -> np.random.Generator:
    """Restart the generator of this process from ``seed`` and return it."""
    generator = _State.generator = np.random.Generator(np.random.PCG64(seed))
    return generator


def default_generator() -> np.random.Generator:
    """The generator that every random function of this process draws from."""
    generator = _State.generator
    if generator is None:
        generator = _State.generator = np.random.Generator(np.random.PCG64())
    return generator


def get_rng_state() -> Tensor:
    """The generator's state as a tensor of bytes, for :func:`set_rng_state`."""
    state = default_generator().bit_generator.state
    numbers = (*state["state"].values(), state["has_uint32"], state["uinteger"])
    data = b"".join(
        number.to_bytes(size, "little")
        for number, size in zip(numbers, _STATE_BYTES.values(), strict=True)
    )
    return Tensor(np.frombuffer(data, np.uint8).copy())


def set_rng_state(new_state: Tensor) -> None:
    """Go on drawing from where the generator was at :func:`get_rng_state`.

    Raises:
        TypeError: ``new_state`` is no tensor of bytes.
        RuntimeError: it has another length than a state.
    """
    if not isinstance(new_state, Tensor) or new_state.dtype != np.uint8:
        raise TypeError("RNG state must be a tensor of dtype uint8, as get_rng_state() returns it")
    data, expected = new_state._array.tobytes(), sum(_STATE_BYTES.values())
    if len(data) != expected:
        raise RuntimeError(
            f"Expected an RNG state of size {expected} but found the input RNG state size to be "
            f"{len(data)}"
        )
    numbers = {}
    for name, size in _STATE_BYTES.items():
        numbers[name], data = int.from_bytes(data[:size], "little"), data[size:]
    bits = default_generator().bit_generator
    inner = {name: numbers.pop(name) for name in bits.state["state"]}
    bits.state = {**bits.state, "state": inner, **numbers}


@contextmanager
def fork_rng(enabled: bool = True) -> Iterator[None]:
    """What is drawn inside does not change what is drawn after it."""
    if not enabled:
        yield
        return
    before = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(before)


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
    if not np.all((np.asarray(probability) >= 0) & (np.asarray(probability) <= 1)):
        raise RuntimeError(f"bernoulli expects p to be in [0, 1], but got p={probability}")
    draws = default_generator().random(array.shape, np.float32)
    _write(array, np.less(draws, probability).astype(array.dtype))


def _write(array: Array, values: Any) -> None:
    """Put values of the host into ``array``, wherever that lies: the draws are the same."""
    device = device_of(array)
    with on(device):
        # Without dimensions NumPy draws a number.
        array[...] = moved(np.asarray(values), device)


def bernoulli_mask(shape: tuple[int, ...], probability: float) -> Array:
    """A boolean array whose elements are true with ``probability``."""
    mask = storage.empty(shape, bool)
    np.less(default_generator().random(shape, np.float32), probability, out=mask)
    return mask


def bernoulli(input: Tensor) -> Tensor:
    """1 with the probability that the element of ``input`` says, else 0; its gradient is 0.

    Raises:
        RuntimeError: an element is no probability.
    """
    draws = storage.empty(input.shape, input.dtype, input.device)
    fill_bernoulli(draws, on_host(input._array))
    return call(_bernoulli, input, Tensor(draws))  # type: ignore[no-any-return]


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


def rand(
    *shape: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform on [0, 1), of that shape."""
    return _filled(fill_uniform, shape_from(shape, size), dtype, device, requires_grad)


def randn(
    *shape: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal, of that shape."""
    return _filled(fill_normal, shape_from(shape, size), dtype, device, requires_grad)


def rand_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform on [0, 1), of the shape, dtype and device of ``input``."""
    place = input.device if device is None else device
    return rand(input.shape, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad)


def randn_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Standard normal, of the shape, dtype and device of ``input``."""
    place = input.device if device is None else device
    return randn(input.shape, dtype=dtype or input.dtype, device=place, requires_grad=requires_grad)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = np.int64,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers from [``low``, ``high``), or [0, ``low``) as ``randint(high, size)``.

    Raises:
        RuntimeError: there is no such integer, or ``dtype`` cannot hold one of them.
    """
    if size is None:
        low, high, size = 0, low, high
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    for limit in (low, high - 1):
        stored(limit, np.dtype(dtype))
    shape = shape_from((size,))
    array = storage.empty(shape, dtype)
    array[...] = default_generator().integers(low, high, shape)
    return Tensor(moved(array, usable(device))).requires_grad_(requires_grad)


def randperm(n: int, *, device: Any = None) -> Tensor:
    """A random permutation of 0 .. n - 1.

    Raises:
        RuntimeError: ``n`` is negative.
    """
    (length,) = shape_from((n,))
    return Tensor(moved(default_generator().permutation(length), usable(device)))


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
