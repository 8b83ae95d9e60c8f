"""Clips gradients that are too long: in place, not recorded."""

from __future__ import annotations

from collections.abc import Iterable

from mpgrad.arrays.cpu.array_program import TRACING
from mpgrad.ops.linear_algebra.norms import norm
from mpgrad.ops.new_tensors.creation import tensor as new_tensor
from mpgrad.ops.shapes.shape import stack
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor

#: Keeps the factor finite if all gradients are 0 (PyTorch's value).
_EPSILON = 1e-6


@no_grad()
def get_total_norm(
    tensors: Iterable[Tensor] | Tensor,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all elements as if they were one vector: 0-d, on the first one's device.

    Args:
        tensors: one, or several; of none the norm is 0.
        norm_type: p of the p-norm; infinity is the largest size.
        error_if_nonfinite: raise if the norm is infinite or NaN.
        foreach: accepted, and without effect.

    Raises:
        RuntimeError: it is, and ``error_if_nonfinite``.
    """
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not listed:
        return new_tensor(0.0)
    device = listed[0].device
    each = [norm(tensor.detach(), norm_type).to(device) for tensor in listed]
    total = norm(stack(each), norm_type)
    if error_if_nonfinite and not total.isfinite().item():
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so"
            " it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by one factor, so that their norm is at most ``max_norm``.

    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.

    Args:
        parameters: those without a ``.grad`` are passed over.
        max_norm: of all gradients together.
        norm_type: as for :func:`get_total_norm`.
        error_if_nonfinite: likewise.
        foreach: accepted, and without effect.

    Returns:
        The norm before.

    Raises:
        RuntimeError: as :func:`get_total_norm` does.
    """
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(_gradients(listed), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(listed, max_norm, total)
    return total


@no_grad()
def clip_grads_with_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Scale all gradients, whose norm is ``total_norm``, so that it is at most ``max_norm``.

    Args:
        parameters: those without a ``.grad`` are passed over.
        max_norm: of all gradients together.
        total_norm: 0-d, as :func:`get_total_norm` gives it.
        foreach: accepted, and without effect.
    """
    grads = _gradients(parameters)
    factor = (max_norm / (total_norm + _EPSILON)).clamp(max=1.0)
    # On a GPU do not wait for the factor; a traced program must hold for other factors, too.
    is_known = factor.is_cpu and not TRACING.entered
    if grads and not (is_known and factor.item() == 1.0):
        for grad in grads:
            grad.mul_(factor.to(grad.device))


@no_grad()
def clip_grad_value_(
    parameters: Iterable[Tensor] | Tensor, clip_value: float, foreach: bool | None = None
) -> None:
    """Clamp each element of each gradient to ``[-clip_value, clip_value]``.

    ``foreach`` is accepted, and has no effect.
    """
    for grad in _gradients(parameters):
        grad.clamp_(-clip_value, clip_value)


def _gradients(parameters: Iterable[Tensor] | Tensor) -> list[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else parameters
    return [parameter.grad for parameter in listed if parameter.grad is not None]
