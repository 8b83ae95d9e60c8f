"""Jacobians for gradcheck: by finite differences, and by backward.

All counts are in real numbers: a complex element is a pair (real part, imaginary part). So one
comparison serves real and complex functions: backward's gradient of a real loss ``L`` with respect
to ``z = a + ib`` is ``dL/da + i dL/db`` (PyTorch's convention, "Autograd for Complex Numbers" in
its notes on autograd mechanics), which is exactly that pair.

Derivatives by finite differences are central, ``(f(x + h) - f(x - h)) / 2h``, whose error is of
order ``h**2`` (for example Nocedal and Wright, Numerical Optimization, section 8.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.arrays.cuda.device_arrays import copied, moved_beside, on_host, on_its_device
from mpgrad.autograd.backward import grad
from mpgrad.base.context_manager import contextmanager
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.tensors.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


class Problem(NamedTuple):
    """A function at a point.

    Attributes:
        function: the user's function; ``args`` its arguments.
        inputs: the arguments that need a gradient.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    inputs: tuple[Tensor, ...]

    def outputs(self) -> tuple[Any, ...]:
        """The outputs of the function."""
        result = self.function(*self.args)
        return tuple(result) if isinstance(result, list | tuple) else (result,)

    def differentiable_outputs(self) -> tuple[Tensor, ...]:
        """Those outputs that require grad, in their order."""
        return tuple(out for out in self.outputs() if _requires_grad(out))

    def values(self, chosen: Sequence[int]) -> list[Array]:
        """The outputs numbered ``chosen`` as copied arrays of real numbers."""
        outputs = self.outputs()
        return [as_reals(outputs[number]._array).copy() for number in chosen]


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def as_reals(array: Any) -> Array:
    """All elements in a row on the CPU, each complex one as two real ones."""
    flat = np.ascontiguousarray(on_host(array)).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def from_reals(numbers: Array, like: Any) -> Array:
    """An array on the CPU of the shape and dtype of ``like``: the inverse of :func:`as_reals`."""
    if like.dtype.kind == "c":
        part = np.empty(0, like.dtype).real.dtype
        numbers = np.ascontiguousarray(numbers, part).view(like.dtype)
    return np.array(numbers.reshape(like.shape), like.dtype)


def real_count(tensor: Tensor) -> int:
    """The number of real numbers in ``tensor``."""
    return int(tensor._array.size) * (2 if tensor._array.dtype.kind == "c" else 1)


# ---------------------------------------------------------------------- finite differences


def numerical_jacobians(
    problem: Problem, variable: int, chosen: Sequence[int], eps: float
) -> list[Array]:
    """For each output in ``chosen`` its Jacobian, (real inputs, real outputs).

    Args:
        problem: the function.
        variable: the index of the input that is varied.
        chosen: numbers of outputs.
        eps: the step.
    """
    array = problem.inputs[variable]._array
    steps = (1.0, 1.0j) if array.dtype.kind == "c" else (1.0,)
    rows: list[list[Array]] = [[] for _ in chosen]
    for place in np.ndindex(array.shape):
        for step in steps:
            change = np.zeros(array.shape, array.dtype)
            change[place] = step
            for row, slope in zip(rows, _slopes(problem, array, change, chosen, eps), strict=True):
                row.append(slope)
    if rows and not rows[0]:
        return [np.zeros((0, len(value))) for value in problem.values(chosen)]
    return [np.stack(row) for row in rows]


def numerical_slopes(
    problem: Problem, variable: int, direction: Array, chosen: Sequence[int], eps: float
) -> list[Array]:
    """For each output in ``chosen`` its derivative along ``direction`` (real numbers)."""
    array = problem.inputs[variable]._array
    return _slopes(problem, array, from_reals(direction, array), chosen, eps)


def _slopes(
    problem: Problem, array: Any, change: Array, chosen: Sequence[int], eps: float
) -> list[Array]:
    with _moved(array, change * eps):
        above = problem.values(chosen)
    with _moved(array, change * -eps):
        below = problem.values(chosen)
    return [(high - low) / (2 * eps) for high, low in zip(above, below, strict=True)]


@contextmanager
def _moved(array: Any, change: Array) -> Iterator[None]:
    """Add ``change`` to ``array`` in place: the function may hold it in other ways than by args."""
    before = copied(array)
    with on_its_device(array):
        array += moved_beside(np.asarray(change, array.dtype), array)
    try:
        yield
    finally:
        with on_its_device(array):
            array[...] = before


# ---------------------------------------------------------------------- backward


def analytical_jacobian(output: Tensor, inputs: Sequence[Tensor]) -> list[Array]:
    """For each input the Jacobian of ``output``, (real inputs, real outputs), by backward."""
    count = real_count(output)
    columns: list[list[Array]] = [[] for _ in inputs]
    for number in range(count):
        seed = np.zeros(count)
        seed[number] = 1.0
        for column, found in zip(columns, slopes(output, inputs, seed), strict=True):
            column.append(found)
    return [
        np.stack(column, axis=1) if column else np.zeros((real_count(tensor), 0))
        for column, tensor in zip(columns, inputs, strict=True)
    ]


def slopes(output: Tensor, inputs: Sequence[Tensor], seed: Array) -> list[Array]:
    """For each input the gradient of ``seed . output``, all in real numbers."""
    gradients = gradients_of([output], inputs, [beside(output, from_reals(seed, output._array))])
    return [
        np.zeros(real_count(tensor)) if gradient is None else as_reals(gradient._array)
        for gradient, tensor in zip(gradients, inputs, strict=True)
    ]


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """``grad()`` with the graph kept, and None for inputs that are not reached."""
    found: tuple[Tensor | None, ...] = grad(
        outputs, inputs, seeds, retain_graph=True, allow_unused=True
    )
    return found
