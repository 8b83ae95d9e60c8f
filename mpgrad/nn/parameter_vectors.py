"""All parameters of a model in one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from mpgrad.ops.shapes.shape import cat, reshape
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters one after another, 1-d.

    Raises:
        TypeError: they lie on several devices.
    """
    listed = list(parameters)
    _check_one_device(listed)
    return cat([reshape(parameter, -1) for parameter in listed])


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the elements of ``vec`` to the parameters, the inverse of the function above.

    Raises:
        TypeError: ``vec`` is not a Tensor, or the parameters lie on several devices.
        RuntimeError: ``vec`` has another number of elements.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected a Tensor, but got: {type(vec).__name__}")
    listed = list(parameters)
    _check_one_device(listed)
    wanted = sum(parameter.numel() for parameter in listed)
    if vec.numel() != wanted:
        raise RuntimeError(f"the vector has {vec.numel()} elements, the parameters {wanted}")
    start = 0
    for parameter in listed:
        part = vec[start : start + parameter.numel()]
        parameter.copy_(reshape(part, parameter.shape))
        start += parameter.numel()


def _check_one_device(parameters: list[Tensor]) -> None:
    if len({parameter.device for parameter in parameters}) > 1:
        raise TypeError("the parameters lie on several devices, which is not supported")
