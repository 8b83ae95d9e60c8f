"""The arguments and results of autograd.functional: Tensors or tuples, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpgrad.ops.new_tensors import creation
from mpgrad.ops.shapes.shape import reshape
from mpgrad.recording.tensors.tensor import Tensor

#: Shown by the strict mode.
NOT_ALLOWED = "This is not allowed in strict mode"


class GivenTensors(NamedTuple):
    """Tensors that the caller passed as a tuple, or as one."""

    tensors: tuple[Tensor, ...]
    is_tuple: bool

    def like(self, results: Sequence[Tensor]) -> Any:
        """``results``, one for each of these, in the form that the caller expects."""
        return tuple(results) if self.is_tuple else results[0]


def packed(value: Any, what: str, function: str) -> GivenTensors:
    """Check that ``value`` is a Tensor or a tuple of Tensors.

    Args:
        what: the name of the value in messages of ``function``.

    Raises:
        TypeError: it is not.
    """
    if isinstance(value, Tensor):
        return GivenTensors((value,), False)
    expected = f"The {what} given to {function} must be either a Tensor or a tuple of Tensors but"
    if not isinstance(value, tuple):
        raise TypeError(f"{expected} the given {what} has type {type(value)}.")
    for index, item in enumerate(value):
        if not isinstance(item, Tensor):
            raise TypeError(f"{expected} the value at index {index} has type {type(item)}.")
    return GivenTensors(value, True)


def variables(inputs: GivenTensors, *, create_graph: bool) -> tuple[Tensor, ...]:
    """The points at which to differentiate: new tensors over the caller's memory.

    With ``create_graph`` they have the caller's tensors as history, if those require grad.
    """
    return tuple(
        reshape(tensor, tensor.shape)
        if create_graph and tensor.requires_grad
        else tensor.detach().requires_grad_()
        for tensor in inputs.tensors
    )


def constants(tensors: Sequence[Tensor], *, create_graph: bool) -> tuple[Tensor, ...]:
    """``tensors`` unchanged with ``create_graph``, else without their history."""
    return tuple(tensors) if create_graph else tuple(tensor.detach() for tensor in tensors)


def call(
    function: Callable[..., Any], points: Sequence[Tensor], name: str, *, strict: bool
) -> GivenTensors:
    """The result of the user's function.

    Raises:
        TypeError: it is neither a Tensor nor a tuple of Tensors.
        RuntimeError: ``strict``, and an output does not require grad.
    """
    outputs = packed(function(*points), "outputs of the user-provided function", name)
    for index, output in enumerate(outputs.tensors):
        if strict and not output.requires_grad:
            raise RuntimeError(
                f"Output {index} of the user-provided function does not require gradients. The "
                "outputs must be computed in a differentiable manner from the input when running "
                "in strict mode."
            )
    return outputs


def scalar(outputs: GivenTensors, name: str) -> Tensor:
    """The only element of the only output, of shape ().

    Raises:
        RuntimeError: there is more.
    """
    if outputs.is_tuple:
        raise RuntimeError(f"The function given to {name} should return a single Tensor")
    (output,) = outputs.tensors
    if output._array.size != 1:
        raise RuntimeError(
            f"The Tensor returned by the function given to {name} should contain a single element"
        )
    return reshape(output, ()) if output.ndim else output


def vector(
    value: Any, like: GivenTensors, name: str, *, missing: str, create_graph: bool
) -> list[Tensor]:
    """The checked ``v`` of a product, one Tensor for each of ``like``.

    Args:
        value: the caller's ``v``.
        like: the tensors that it is multiplied with.
        missing: the name of what must have one element if there is no ``v``.
        create_graph: whether it keeps its history.

    Raises:
        TypeError: it is neither a Tensor nor a tuple of Tensors.
        RuntimeError: it does not fit, or is missing and needed.
    """
    if value is None:
        if len(like.tensors) != 1 or like.tensors[0]._array.size != 1:
            raise RuntimeError(f"The vector v can only be None if {missing} with a single element.")
        return [creation.ones_like(like.tensors[0])]
    given = packed(value, "v", name)
    if len(given.tensors) != len(like.tensors):
        if not like.is_tuple:
            raise RuntimeError("The given v should contain a single Tensor.")
        raise RuntimeError(
            f"v is a tuple of invalid length: should be {len(like.tensors)} but got "
            f"{len(given.tensors)}."
        )
    for index, (tensor, expected) in enumerate(zip(given.tensors, like.tensors, strict=True)):
        if tensor.shape != expected.shape:
            which = f"Entry {index} in v" if len(like.tensors) > 1 else "v"
            raise RuntimeError(
                f"{which} has invalid size: should be {expected.shape} but got {tensor.shape}."
            )
    return list(constants(given.tensors, create_graph=create_graph))


def filled(
    gradients: Sequence[Tensor | None],
    like: Sequence[Tensor],
    *,
    independent: str | None,
    constant: str | None,
) -> list[Tensor]:
    """``gradients``, with zeros for those that are None.

    Args:
        like: the shape and dtype of each.
        independent: the error instead of zeros, if any; {index} stands for the number.
        constant: the error for a gradient without history.

    Raises:
        RuntimeError: see above.
    """
    results = []
    for index, (gradient, tensor) in enumerate(zip(gradients, like, strict=True)):
        if gradient is None and independent:
            raise RuntimeError(independent.format(index=index))
        if gradient is not None and constant and not gradient.requires_grad:
            raise RuntimeError(constant.format(index=index))
        results.append(creation.zeros_like(tensor) if gradient is None else gradient)
    return results
