"""Complex numbers: their parts, conjugates, angles, and making them from real ones.

None of these is holomorphic, so the formulas hold for complex numbers as they stand
(``wirtinger=True``; see ``recording.graph.registry``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpgrad.ops.calling.promotion import as_tensor_operand, floating
from mpgrad.ops.elementwise.rounding import sign
from mpgrad.ops.shapes.shape import transpose
from mpgrad.recording.dispatch.operator_call import call
from mpgrad.recording.graph.registry import operator
from mpgrad.recording.tensors.tensor import Tensor

__all__ = [
    "adjoint",
    "angle",
    "complex",
    "conj",
    "conj_physical",
    "imag",
    "is_complex",
    "polar",
    "real",
    "resolve_conj",
    "resolve_neg",
    "sgn",
    "view_as_complex",
    "view_as_real",
]


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is a complex one."""
    return input._array.dtype.kind == "c"


_real = operator(
    "real",
    lambda xp, input: xp.real(input),
    wirtinger=True,
    view="real",
    input=lambda xp, grad: xp.complex(grad, xp.zeros_beside(grad, grad.shape)),
)
_imag = operator(
    "imag",
    lambda xp, input: xp.imag(input),
    wirtinger=True,
    view="imag",
    input=lambda xp, grad: xp.complex(xp.zeros_beside(grad, grad.shape), grad),
)


def real(input: Tensor) -> Tensor:
    """A view of the real parts; a real tensor itself."""
    return call(_real, input) if is_complex(input) else input


def imag(input: Tensor) -> Tensor:
    """A view of the imaginary parts.

    Raises:
        RuntimeError: ``input`` is not complex.
    """
    if not is_complex(input):
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return call(_imag, input)


_conj = operator(
    "conj",
    lambda xp, input: xp.conj(input),
    wirtinger=True,
    input=lambda xp, grad: xp.conj(grad),
)


def conj(input: Tensor) -> Tensor:
    """The complex conjugates, a copy; a real tensor itself."""
    return call(_conj, input) if is_complex(input) else input


conj_physical = conj


def resolve_conj(input: Tensor) -> Tensor:
    """``input`` itself: conjugates are always computed here, not marked."""
    return input


def resolve_neg(input: Tensor) -> Tensor:
    """``input`` itself: negatives are always computed here, not marked."""
    return input


def adjoint(input: Tensor) -> Tensor:
    """The conjugate transpose of the last two dimensions.

    Raises:
        RuntimeError: it has one dimension.
    """
    if input.ndim == 0:
        return conj(input)
    if input.ndim == 1:
        raise RuntimeError("adjoint() is only supported on matrices or batches of them, not 1-D")
    return conj(transpose(input, -2, -1))


def conjugate_transpose(input: Tensor) -> Tensor:
    """The result of ``tensor.H``.

    Raises:
        RuntimeError: it is no matrix.
    """
    if input.ndim != 2:
        raise RuntimeError(
            f"tensor.H is only supported on matrices (2-D tensors). Got {input.ndim}-D tensor."
        )
    return adjoint(input)


#: Functions that are attributes of tensors, and can be assigned to.
PARTS: dict[str, Callable[[Tensor], Tensor]] = {"real": real, "imag": imag}


_complex = operator(
    "complex",
    lambda xp, real, imag: xp.complex(real, imag),
    wirtinger=True,
    real=lambda xp, grad, real_shape: xp.sum_to(xp.real(grad), real_shape),
    imag=lambda xp, grad, imag_shape: xp.sum_to(xp.imag(grad), imag_shape),
)


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """``real + 1j * imag``.

    Raises:
        RuntimeError: they are not both float32 or both float64.
        TypeError: one is no tensor.
    """
    _check_parts("complex", "real imag", real, imag)
    return call(_complex, real, imag)


def _modulus_grad(xp: Any, grad: Any, abs: Any, angle: Any, abs_shape: Any) -> Any:
    """PyTorch's: along ``sgn(result)``, so that a modulus of 0 gets 0."""
    along = xp.add(
        xp.multiply(xp.real(grad), xp.cos(angle)), xp.multiply(xp.imag(grad), xp.sin(angle))
    )
    return xp.sum_to(xp.multiply(xp.sign(abs), along), abs_shape)


def _polar_angle_grad(xp: Any, grad: Any, abs: Any, angle: Any, angle_shape: Any) -> Any:
    across = xp.subtract(
        xp.multiply(xp.imag(grad), xp.cos(angle)), xp.multiply(xp.real(grad), xp.sin(angle))
    )
    return xp.sum_to(xp.multiply(abs, across), angle_shape)


_polar = operator(
    "polar",
    lambda xp, abs, angle: xp.complex(
        xp.multiply(abs, xp.cos(angle)), xp.multiply(abs, xp.sin(angle))
    ),
    wirtinger=True,
    abs=_modulus_grad,
    angle=_polar_angle_grad,
)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """``abs * (cos(angle) + 1j * sin(angle))``.

    The gradient of a modulus has its sign, as in PyTorch; moduli should be positive.

    Raises:
        RuntimeError: they are not both float32 or both float64.
        TypeError: one is no tensor.
    """
    _check_parts("polar", "abs angle", abs, angle)
    return call(_polar, abs, angle)


def _check_parts(name: str, arguments: str, first: Tensor, second: Tensor) -> None:
    for argument, value in zip(arguments.split(), (first, second), strict=True):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name}(): argument '{argument}' must be Tensor, not {type(value).__name__}"
            )
    dtypes = first._array.dtype, second._array.dtype
    if any(dtype.kind != "f" or dtype.itemsize < 4 for dtype in dtypes):
        raise RuntimeError(f"Expected both inputs to be Float or Double tensors but got {dtypes}")
    if dtypes[0] != dtypes[1]:
        raise RuntimeError(
            f"Expected object of scalar type {dtypes[0]} but got scalar type {dtypes[1]} for "
            "second argument"
        )


def _angle_grad(xp: Any, grad: Any, input: Any) -> Any:
    """``1j * input / |input|^2``, and 0 at the origin; of real numbers the angle is a step."""
    if input.dtype.kind != "c":
        return xp.zeros_beside(grad, grad.shape)
    origin = xp.equal(input, 0)
    # 1 / conj(z) is z / |z|^2 without squares that could overflow.
    slope = xp.multiply(xp.reciprocal(xp.conj(xp.where(origin, 1.0, input))), 1j)
    return xp.where(origin, 0.0, xp.multiply(slope, grad))


def _angle_of(xp: Any, input: Any) -> Any:
    if input.dtype.kind == "c":
        return xp.angle(input)
    # Not by atan2, for which -0.0 lies on the left.
    return xp.where(xp.less(input, 0), math.pi, xp.where(xp.isnan(input), input, 0.0))


_angle = operator("angle", _angle_of, wirtinger=True, input=_angle_grad)


def angle(input: Tensor) -> Tensor:
    """The argument in (-pi, pi]; of real numbers 0 or pi. Its gradient at 0 is 0."""
    return call(_angle, floating(input))


def _sgn_grad(xp: Any, grad: Any, input: Any, result: Any) -> Any:
    """The part of ``grad`` at right angles to ``input``, over ``|input|``; 0 at the origin."""
    size = xp.absolute(input)
    origin = xp.equal(size, 0)
    along = xp.real(xp.multiply(grad, xp.conj(result)))
    across = xp.subtract(grad, xp.multiply(result, along))
    return xp.where(origin, 0.0, xp.divide(across, xp.where(origin, 1.0, size)))


_sgn = operator("sgn", lambda xp, input: xp.sign(input), wirtinger=True, input=_sgn_grad)


def sgn(input: Tensor) -> Tensor:
    """``input / abs(input)``, 0 at 0; of real numbers :func:`sign`."""
    tensor = as_tensor_operand(input)
    return call(_sgn, tensor) if is_complex(tensor) else sign(tensor)


_view_as_real = operator(
    "view_as_real",
    lambda xp, input: xp.view_as_real(input),
    wirtinger=True,
    view="view_as_real",
    input=lambda xp, grad: xp.view_as_complex(xp.copy(grad)),
)
_view_as_complex = operator(
    "view_as_complex",
    lambda xp, input: xp.view_as_complex(input),
    wirtinger=True,
    view="view_as_complex",
    input=lambda xp, grad: xp.view_as_real(grad),
)


def view_as_real(input: Tensor) -> Tensor:
    """A view with one more dimension, of length 2: real and imaginary part.

    Raises:
        RuntimeError: ``input`` is not complex.
    """
    if not is_complex(input):
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return call(_view_as_real, input)


def view_as_complex(input: Tensor) -> Tensor:
    """A view as complex numbers; the last dimension, of length 2, are their parts.

    Raises:
        RuntimeError: there is no such dimension, its elements are not neighbours in memory, or
            the dtype is neither float32 nor float64.
    """
    array = input._array
    if array.dtype.kind != "f" or array.itemsize < 4:
        raise RuntimeError(
            "view_as_complex is only supported for float and double tensors, but got a tensor of "
            f"scalar type: {array.dtype}"
        )
    if array.ndim == 0 or array.shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    if array.strides[-1] != array.itemsize:
        raise RuntimeError("Tensor must have a last dimension with stride 1")
    if any(stride % (2 * array.itemsize) for stride in array.strides[:-1]):
        raise RuntimeError("Tensor must have a stride divisible by 2 for all but last dimension")
    return call(_view_as_complex, input)
