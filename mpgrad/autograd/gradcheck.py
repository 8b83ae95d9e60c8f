"""gradcheck() and gradgradcheck(): compare the results of backward with finite differences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpgrad.autograd.backward import grad
from mpgrad.autograd.checks.closeness import Tolerances, check_jacobians, generator
from mpgrad.autograd.checks.jacobians import (
    Problem,
    analytical_jacobian,
    from_reals,
    gradients_of,
    numerical_jacobians,
    real_count,
)
from mpgrad.autograd.checks.probes import (
    GradcheckError,
    check_batched,
    check_dtypes,
    check_undefined,
    check_zero_seeds,
)
from mpgrad.ops.new_tensors.device_moves import beside
from mpgrad.recording.tensors.tensor import Tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

Function: TypeAlias = Callable[..., Any]


def gradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Check the gradients of ``func`` at ``inputs`` against central differences.

    The inputs are varied in place and put back. Use float64: with ``eps`` the differences of
    float32 are mostly rounding.

    Args:
        func: takes the inputs; returns a Tensor or a tuple or list with some.
        inputs: a Tensor or a tuple of arguments; those that require grad are checked.
        eps: the step of the differences.
        atol, rtol: analytical ``a`` and numerical ``n`` agree if ``|a - n| <= atol + rtol |n|``.
        raise_exception: raise GradcheckError; otherwise return False.
        nondet_tol: how far two runs of backward may differ.
        check_undefined_grad: check that backward accepts undefined gradients.
        check_grad_dtypes: check that a gradient has its input's dtype.
        check_batched_grad: check ``is_grads_batched``.
        fast_mode: compare between random vectors instead of whole Jacobians.
        masked: accepted without effect; it concerns sparse tensors.

    Returns:
        True, or False if ``raise_exception`` is False and a gradient is wrong.

    Raises:
        GradcheckError: a gradient is wrong (a RuntimeError).
        ValueError: no input requires grad.
        NotImplementedError: forward-mode derivatives are requested, which do not exist here.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError(
            "Expected at least one of check_forward_ad or check_backward_ad to be True"
        )
    if check_forward_ad or check_batched_forward_grad:
        raise NotImplementedError(
            "there is no forward-mode differentiation to be checked: leave check_forward_ad and "
            "check_batched_forward_grad out"
        )
    problem = _problem(func, inputs)
    tolerances = Tolerances(eps, atol, rtol, nondet_tol)
    try:
        if not check_jacobians(problem, tolerances, fast_mode):
            return True
        if check_batched_grad:
            check_batched(problem, generator())
        check_zero_seeds(problem)
        if check_undefined_grad:
            check_undefined(problem)
        if check_grad_dtypes:
            check_dtypes(problem)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Check second derivatives: :func:`gradcheck` of the gradients of ``func``.

    Args:
        func, inputs: as for :func:`gradcheck`.
        grad_outputs: seeds for the outputs that require grad; by default random ones, which are
            varied too.
        gen_non_contig_grad_outputs: whether those random seeds are not contiguous.
        check_rev_over_rev: differentiate backward by backward, the only supported way.
        eps, atol, rtol, raise_exception, nondet_tol: as for :func:`gradcheck`.
        check_undefined_grad, check_grad_dtypes, check_batched_grad: as for :func:`gradcheck`.
        fast_mode, masked: as for :func:`gradcheck`.

    Raises:
        GradcheckError: a second derivative is wrong.
        ValueError: no input requires grad.
        NotImplementedError: ``check_fwd_over_rev``.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError(
            "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
        )
    if check_fwd_over_rev:
        raise NotImplementedError(
            "there is no forward-mode differentiation to be checked: leave check_fwd_over_rev out"
        )
    problem = _problem(func, inputs)
    seeds = _seeds(problem, grad_outputs, scattered=gen_non_contig_grad_outputs)
    count = len(problem.args)

    def first_derivatives(*args: Any) -> tuple[Tensor, ...]:
        outputs = Problem(func, args[:count], ()).differentiable_outputs()
        found = grad(outputs, problem.inputs, args[count:], create_graph=True, allow_unused=True)
        return tuple(value for value in found if value is not None)

    return gradcheck(
        first_derivatives,
        (*problem.args, *seeds),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        fast_mode=fast_mode,
        masked=masked,
    )


def _problem(func: Function, inputs: Any) -> Problem:
    """The function with its arguments checked.

    Raises:
        ValueError: no argument requires grad.
        RuntimeError: elements of one share memory, so that they cannot be varied one by one.
    """
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    wanted = []
    for index, arg in enumerate(args):
        if not (isinstance(arg, Tensor) and arg.requires_grad):
            continue
        if arg._array.dtype.char not in "dD":
            warnings.warn(
                f"Input #{index} requires gradient and is not a double precision floating point or "
                "complex. This check will likely fail if all the inputs are not of double "
                "precision floating point or complex.",
                UserWarning,
                stacklevel=3,
            )
        sizes = zip(arg._array.shape, arg._array.strides, strict=True)
        if arg._array.size and any(size > 1 and stride == 0 for size, stride in sizes):
            raise RuntimeError(
                f"The {index}th input has a dimension with stride 0. gradcheck only supports "
                "inputs that are non-overlapping to be able to compute the numerical gradients "
                "correctly. Call .clone() on the input before passing it to gradcheck."
            )
        wanted.append(arg)
    if not wanted:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them "
            "have requires_grad=True."
        )
    return Problem(func, args, tuple(wanted))


def _seeds(problem: Problem, grad_outputs: Any, *, scattered: bool) -> tuple[Tensor, ...]:
    """Seeds for gradgradcheck that require grad themselves."""
    if grad_outputs is not None:
        return (grad_outputs,) if isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
    draws, seeds = generator(), []
    for output in problem.differentiable_outputs():
        array = from_reals(draws.standard_normal(real_count(output)), output._array)
        if scattered:  # every second element of an array of twice the length
            twice = beside(output, np.repeat(array[..., np.newaxis], 2, axis=-1))
            seeds.append(twice[..., 0].detach().requires_grad_())
        else:
            seeds.append(beside(output, array).requires_grad_())
    return tuple(seeds)


# ---------------------------------------------------------------------- PyTorch's older functions


def get_numerical_jacobian(
    fn: Function, inputs: Any, target: Any = None, eps: float = 1e-3, grad_out: float = 1.0
) -> list[Tensor]:
    """Deprecated: Jacobians of the first output of ``fn(inputs)``, by central differences.

    Args:
        fn: takes all inputs as one tuple.
        inputs: a Tensor or a tuple of them.
        target: with respect to which of them; by default to all that require grad.
        eps: the step.
        grad_out: nothing but 1.0.

    Returns:
        For each target (elements of the input, elements of the output).

    Raises:
        ValueError: ``grad_out`` is another number.
    """
    _warn_of_private("get_numerical_jacobian", grad_out)
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    wanted = args if target is None else (target,) if isinstance(target, Tensor) else tuple(target)
    wanted = tuple(value for value in wanted if isinstance(value, Tensor) and value.requires_grad)
    problem = Problem(lambda *values: fn(values), args, wanted)
    return [
        beside(value, numerical_jacobians(problem, number, [0], eps)[0])
        for number, value in enumerate(wanted)
    ]


def get_analytical_jacobian(
    inputs: Any, output: Tensor, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[Tensor, ...], bool, bool, bool]:
    """Deprecated: Jacobians of ``output``, by backward.

    Args:
        inputs: a Tensor or a tuple of them; those that require grad count.
        output: computed from them.
        nondet_tol: how far two runs of backward may differ.
        grad_out: nothing but 1.0.

    Returns:
        For each input (its elements, elements of the output); whether a second run of backward gave
        the same; whether the gradients had the sizes, and the dtypes, of the inputs.

    Raises:
        ValueError: ``grad_out`` is another number.
    """
    _warn_of_private("get_analytical_jacobian", grad_out)
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    wanted = [value for value in args if isinstance(value, Tensor) and value.requires_grad]
    first, second = (analytical_jacobian(output, wanted) for _ in range(2))
    again = all(
        not one.size or np.max(np.abs(one - other)) <= nondet_tol
        for one, other in zip(first, second, strict=True)
    )
    gradients = gradients_of(
        [output], wanted, [beside(output, np.ones(output.shape, output.dtype))]
    )
    pairs = [(g, value) for g, value in zip(gradients, wanted, strict=True) if g is not None]
    sizes = all(g.shape == value.shape for g, value in pairs)
    dtypes = all(g.dtype == value.dtype for g, value in pairs)
    found = tuple(beside(value, array) for value, array in zip(wanted, first, strict=True))
    return found, again, sizes, dtypes


def _warn_of_private(name: str, grad_out: float) -> None:
    warnings.warn(
        f"`{name}` was part of PyTorch's private API and is not meant to be used. Use gradcheck().",
        FutureWarning,
        stacklevel=3,
    )
    if grad_out != 1.0:
        raise ValueError(f"Expected grad_out to be 1.0, got {grad_out}")
