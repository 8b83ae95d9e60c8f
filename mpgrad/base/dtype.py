"""DType: the type of the elements of a Tensor, as in PyTorch; and the default dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

_Dtype = np.dtype[Any]


class DType:
    """The type of the elements of a Tensor. Each exists once, so that ``is`` and ``==`` agree.

    NumPy accepts it as a dtype, by its attribute ``dtype``; ``==`` accepts everything that NumPy
    accepts as a dtype. It also has NumPy's attributes ``kind``, ``name`` and ``type``.

    Args:
        dtype: a dtype of NumPy, or an object that NumPy accepts as one.
    """

    __slots__ = ("dtype",)

    dtype: _Dtype

    def __new__(cls, dtype: Any) -> DType:
        return DTYPES[np.dtype(dtype)]

    @property
    def is_floating_point(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.dtype.kind == "c"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind in "ifc"

    @property
    def kind(self) -> str:
        """NumPy's letter: b, u, i, f or c."""
        return self.dtype.kind

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    def to_real(self) -> DType:
        """The dtype of the parts of complex numbers of this one; itself if it is not complex."""
        return DTYPES[np.empty(0, self.dtype).real.dtype]

    def to_complex(self) -> DType:
        """The complex dtype of the same precision.

        Raises:
            RuntimeError: there is none.
        """
        if self.dtype.kind == "c" or self.dtype in (np.float32, np.float64):
            return DTYPES[np.result_type(self.dtype, np.complex64)]
        raise RuntimeError(f"there is no complex dtype for {self}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a dtype has no attribute {name!r}", name=name, obj=self)
        return getattr(self.dtype, name)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other is None or isinstance(other, DType):
            return False
        try:
            return self.dtype == np.dtype(other)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"mpgrad.{self.dtype}"

    def __reduce__(self) -> tuple[Any, ...]:
        return DType, (self.dtype.str,)


class _Dtypes(dict[_Dtype, DType]):
    def __missing__(self, dtype: _Dtype) -> DType:
        made = object.__new__(DType)
        made.dtype = dtype
        return self.setdefault(dtype, made)


#: By NumPy's dtype; each is made on first use.
DTYPES = _Dtypes()

#: The same class under PyTorch's name.
dtype = DType

#: The indices in ``DEFAULTS`` of the two that can be set.
FLOATING, COMPLEX = 2, 3

#: The dtypes of Python numbers, by category: bool, integer, floating, complex.
DEFAULTS: list[_Dtype] = [
    np.dtype(numbers) for numbers in (np.bool_, np.int64, np.float32, np.complex64)
]
_COMPLEX = {
    np.dtype(real): np.dtype(parts)
    for real, parts in (
        (np.float16, np.complex64),
        (np.float32, np.complex64),
        (np.float64, np.complex128),
    )
}


def default_float() -> _Dtype:
    """The dtype of Python floats, and of integers in floating-point operators (NumPy's)."""
    return DEFAULTS[FLOATING]


def get_default_dtype() -> DType:
    """The dtype of Python floats: float32 unless it was set."""
    return DTYPES[DEFAULTS[FLOATING]]


def set_default_dtype(d: DType) -> None:
    """Set the dtype of Python floats, and of integers in floating-point operators.

    Complex numbers become complex128 if ``d`` is float64, else complex64. The setting holds for the
    whole process, and for custom Functions in its workers.

    Raises:
        TypeError: ``d`` is not a floating dtype.
    """
    chosen = np.dtype(d) if isinstance(d, DType | np.dtype | type) else None
    if chosen not in _COMPLEX:
        raise TypeError(
            f"only floating-point types are supported as the default type, not {d!r}: use "
            "mpgrad.float32, mpgrad.float64 or mpgrad.float16"
        )
    DEFAULTS[FLOATING:] = [chosen, _COMPLEX[chosen]]
