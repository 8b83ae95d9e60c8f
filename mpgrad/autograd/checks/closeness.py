"""How gradcheck compares Jacobians: whole, or between random vectors.

The slow mode compares whole Jacobians. The fast mode compares them between two random vectors,
``v . J u``, which costs two evaluations and one backward however large ``J`` is: the idea of
checking a Jacobian by its products with random directions is folklore (Baydin et al., Automatic
Differentiation in Machine Learning: a Survey, JMLR 2018, section 2.1, describe the difference
quotients; PyTorch's notes "Gradcheck mechanics" the two modes). Two different Jacobians agree
between random vectors with probability 0, but may do so within the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpgrad.autograd.checks.jacobians import (
    Array,
    Problem,
    analytical_jacobian,
    numerical_jacobians,
    numerical_slopes,
    real_count,
    slopes,
)
from mpgrad.autograd.checks.probes import GradcheckError
from mpgrad.recording.tensors.tensor import Tensor


class Tolerances(NamedTuple):
    """The step of the differences, and how much results may differ."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float


def generator() -> np.random.Generator:
    """A generator with the same draws at each call: a check that fails should fail again."""
    return np.random.default_rng(0)


def check_jacobians(problem: Problem, tolerances: Tolerances, fast: bool) -> bool:
    """Compare the derivatives; False if no output requires grad (there is nothing to compare).

    Raises:
        GradcheckError: they differ, or a second run of backward gives other derivatives.
    """
    outputs = problem.outputs()
    chosen = [k for k, out in enumerate(outputs) if isinstance(out, Tensor) and out.requires_grad]
    if not chosen:
        _check_constant(problem, tolerances)
        return False
    compare = _compare_fast if fast else _compare_slow
    for at, number in enumerate(chosen):
        compare(problem, outputs[number], (at, number), tolerances)
    return True


def _check_constant(problem: Problem, tolerances: Tolerances) -> None:
    """Outputs that do not require grad must not depend on the inputs."""
    outputs = problem.outputs()
    chosen = [
        number
        for number, out in enumerate(outputs)
        if isinstance(out, Tensor) and out._array.dtype.kind in "fc"
    ]
    for variable in range(len(problem.inputs)):
        for jacobian in numerical_jacobians(problem, variable, chosen, tolerances.eps):
            if not np.allclose(jacobian, 0, tolerances.rtol, tolerances.atol):
                raise GradcheckError(
                    "Numerical gradient for function expected to be zero: no output requires grad, "
                    "but they depend on the inputs"
                )


def _compare_slow(
    problem: Problem, output: Tensor, place: tuple[int, int], tolerances: Tolerances
) -> None:
    at, number = place
    analytical = analytical_jacobian(output, problem.inputs)
    for variable, found in enumerate(analytical):
        (numerical,) = numerical_jacobians(problem, variable, [number], tolerances.eps)
        if not np.allclose(found, numerical, tolerances.rtol, tolerances.atol):
            raise GradcheckError(_mismatch(at, variable, numerical, found))
    again = analytical_jacobian(output, problem.inputs)
    _check_repetition(analytical, again, tolerances)


def _compare_fast(
    problem: Problem, output: Tensor, place: tuple[int, int], tolerances: Tolerances
) -> None:
    at, number = place
    draws = generator()
    seed = _direction(draws, real_count(output))
    gradients = slopes(output, problem.inputs, seed)
    for variable, (gradient, tensor) in enumerate(zip(gradients, problem.inputs, strict=True)):
        direction = _direction(draws, real_count(tensor))
        (rise,) = numerical_slopes(problem, variable, direction, [number], tolerances.eps)
        numerical, analytical = float(rise @ seed), float(gradient @ direction)
        # Elements that are each off by atol sum up to this.
        atol = tolerances.atol * np.abs(seed).sum() * np.abs(direction).sum()
        if not np.isclose(analytical, numerical, tolerances.rtol, atol):
            (whole,) = numerical_jacobians(problem, variable, [number], tolerances.eps)
            exact = analytical_jacobian(output, problem.inputs)[variable]
            raise GradcheckError(
                f"{_mismatch(at, variable, whole, exact)}\nfound in fast mode, where the quantity "
                f"between two random vectors is\nnumerical:{numerical}\nanalytical:{analytical}"
            )
    _check_repetition(gradients, slopes(output, problem.inputs, seed), tolerances)


def _direction(draws: np.random.Generator, count: int) -> Array:
    """A random vector of length 1."""
    vector = draws.standard_normal(count)
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def _mismatch(output: int, variable: int, numerical: Array, analytical: Array) -> str:
    difference = np.abs(analytical - numerical)
    row, column = np.unravel_index(
        np.argmax(np.nan_to_num(difference, nan=np.inf)), difference.shape
    )
    return (
        f"Jacobian mismatch for output {output} with respect to input {variable},\n"
        f"numerical:{numerical}\nanalytical:{analytical}\n"
        f"(rows are elements of the input, columns of the output; complex ones count twice.) The "
        f"largest difference is {difference[row, column]} at ({row}, {column})."
    )


def _check_repetition(
    first: Sequence[Array], second: Sequence[Array], tolerances: Tolerances
) -> None:
    for one, other in zip(first, second, strict=True):
        if one.size and not np.max(np.abs(one - other)) <= tolerances.nondet_tol:
            raise GradcheckError(
                "Backward is not reentrant, i.e., running backward with same input and "
                "grad_output multiple times gives different values, although analytical gradient "
                "matches numerical gradient. The tolerance for nondeterminism was "
                f"{tolerances.nondet_tol}; nondet_tol sets it."
            )
