"""TracedNamespace: the NumPy namespace whose calls an ArrayProgram notes, as NumPy's own calls.

What the namespace decides by shapes, dtypes and layouts is decided here, once: small results are
plain calls of NumPy in the source. Each such call is tried beside the namespace's own, and stands
in the source only if it gave the same bits. All else stays a call of the namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpgrad.arrays.cpu.array_program import TRACING, ArrayProgram, plain
from mpgrad.arrays.cpu.array_proxies import ArrayProxy, NumberProxy
from mpgrad.arrays.cpu.blockwise import WHOLE_BYTES
from mpgrad.arrays.cpu.broadcasting import stretched_axes
from mpgrad.arrays.cpu.cpu_backend import LARGE_BYTES, CpuBackend, is_by_channel
from mpgrad.arrays.cpu.cpu_choices import direct_where
from mpgrad.arrays.cpu.cpu_indexing import complete_key
from mpgrad.arrays.cpu.cpu_products import warns_at_random

#: The characters of a number that a name cannot have: no two numbers get one name.
_IN_NAMES = str.maketrans({".": "_", "-": "minus", "+": "plus"})

#: ``(namespace, result, *arguments) -> expression``, or None where there is none.
Lowering = Callable[..., str | None]

_BINARY = {
    **{name: getattr(np, name) for name in ("add", "subtract", "multiply", "power", "remainder")},
    **{name: getattr(np, name) for name in ("equal", "not_equal", "greater", "greater_equal")},
    **{name: getattr(np, name) for name in ("less", "less_equal", "logical_and", "logical_or")},
    **{name: getattr(np, name) for name in ("maximum", "minimum", "floor_divide")},
    "divide": np.true_divide,
}
_UNARY = {
    **{name: getattr(np, name) for name in ("negative", "absolute", "sqrt", "square", "log")},
    **{name: getattr(np, name) for name in ("reciprocal", "exp", "expm1", "log1p", "sin", "cos")},
    **{name: getattr(np, name) for name in ("tanh", "logical_not")},
}


class TracedNamespace:
    """The array namespace ``xp`` for ArrayProxies.

    Args:
        program: notes the calls.
        xp: the namespace whose calls they are.
        is_fixed: each run gets arrays of the same layouts.
    """

    def __init__(self, program: ArrayProgram, xp: CpuBackend, *, is_fixed: bool) -> None:
        self._program, self._xp, self.is_fixed = program, xp, is_fixed
        self._constants: dict[Any, ArrayProxy] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._xp, name)
        if not callable(found) or isinstance(found, type):
            return found

        def method(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, found, args, kwargs)

        return method

    def _call(self, name: str, found: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        program = self._program
        before, is_given_up = len(program.lines), program.is_given_up
        text = f"{program.bound(self._xp, 'xp')}.{name}"
        value = program.call(found, args, kwargs, text)
        lower = _LOWERED.get(name)
        if lower is None or is_given_up or type(value) is not ArrayProxy:
            return value
        result = value._value
        if len(program.lines) != before + 1 or result.nbytes >= LARGE_BYTES:
            return value
        try:
            expression = lower(self, result, *args, **kwargs)
        except (TypeError, AttributeError):  # arguments that only the namespace understands
            expression = None
        if expression is not None and self._gives(expression, result, args):
            del program.lines[before]
            program.write(f"{value._name} = {expression}")
        return value

    def _gives(self, expression: str, expected: Any, args: Any) -> bool:
        """Whether ``expression`` gives the bits of ``expected``, in its layout."""
        names = {a._name: a._value for a in _arrays(args)}
        return _same_bits(eval(expression, self._program.known, names), expected)

    def checked(self, formula: Any, operands: Any, *, blockwise: bool = False) -> Any:
        """``formula(self, *operands)``, if it gives the same bits for real arrays.

        It could have asked what its operands are, and taken them for something else.
        """

        def run(xp: Any, *operands: Any) -> Any:
            return xp.blockwise(formula, *operands) if blockwise else formula(xp, *operands)

        found = run(self, *operands)
        if self._program.is_given_up:
            return found
        wanted = TRACING.paused(run, (self._xp, *operands), {})
        several = type(wanted) in (tuple, list)
        pairs = zip(wanted, found, strict=True) if several else [(wanted, found)]
        if not all(_same_bits(plain(theirs), ours) for ours, theirs in pairs):
            self._program.read("a formula that asks what its operands are")
        return found

    # ------------------------------------------------------------------ what is no single call

    def blockwise(self, formula: Any, first: Any, *rest: Any, axes: Any = None) -> Any:
        """As the namespace's: small arrays are not cut, so the formula is traced itself."""
        if first.nbytes >= WHOLE_BYTES:
            # The program binds the formula: a lambda of an operator, the same in each run.
            given = {} if axes is None else {"axes": axes}
            return self._call("blockwise", self._xp.blockwise, (formula, first, *rest), given)
        return formula(self, first, *rest) if axes is None else formula(self, axes, first, *rest)

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        """``x`` itself if it is an array."""
        if type(x) is ArrayProxy and dtype is None and type(x._value) is np.ndarray:
            return x
        return self._call("asarray", np.asarray, (x,) if dtype is None else (x, dtype), {})

    def ascontiguousarray(self, x: Any) -> Any:
        """``x`` itself if it is C-contiguous, and always will be."""
        if self.is_fixed and type(x) is ArrayProxy and x.flags.c_contiguous and x.ndim:
            return x
        return self._call("ascontiguousarray", np.ascontiguousarray, (x,), {})

    def getitem(self, x: Any, key: tuple[Any, ...], indices: Any = ()) -> Any:
        """``x[key]``."""
        if indices:
            self._program.check_key(indices)
            return self._call("getitem", self._xp.getitem, (x, key, indices), {})
        return x[complete_key(key, ())]

    def sum_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        """As the namespace's."""
        if x.shape == shape:
            return x
        total = self.sum(x, stretched_axes(x.shape, shape))
        return total if total.shape == shape else total.reshape(shape)

    def order(self, *operands: Any) -> str:
        """What makes the result C-contiguous where the layouts of the operands do not."""
        if self.is_fixed:
            arrays = [array for array in operands if type(array) is ArrayProxy]
            if all(array.flags.c_contiguous for array in arrays):
                return ""
        return ", order='C'"

    def text(self, *values: Any) -> str:
        """Arguments."""
        return ", ".join([self._program.text(value) for value in values])

    def constant(self, value: Any, dtype: np.dtype[Any]) -> Any:
        """A number beside an array of that dtype as an array, which NumPy need not convert."""
        if dtype.kind != "f" or type(value) not in (float, int):
            return value
        key = (repr(value), dtype)
        if key not in self._constants:
            made = np.array(value, dtype)
            name = f"{dtype.name}_{repr(value).translate(_IN_NAMES)}"
            self._constants[key] = ArrayProxy(self._program, made, self._program.bound(made, name))
        return self._constants[key]

    def name(self, function: Any) -> str:
        """A function of NumPy's."""
        return self._program.bound(function, function.__name__)


def _same_bits(found: Any, expected: Any) -> bool:
    if type(expected) is not np.ndarray:
        return found is expected
    return (
        type(found) is np.ndarray
        and found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.strides == expected.strides
        and found.tobytes() == expected.tobytes()
    )


def _arrays(values: Any) -> list[ArrayProxy | NumberProxy]:
    found: list[ArrayProxy | NumberProxy] = []
    for value in values:
        if type(value) in (ArrayProxy, NumberProxy):
            found.append(value)
        elif type(value) in (tuple, list):
            found += _arrays(value)
    return found


# ---------------------------------------------------------------------- calls of NumPy


def _array(xp: TracedNamespace, expression: str, result: Any) -> str:
    """NumPy gives a scalar where the result has no dimensions."""
    return expression if result.ndim else f"{xp.name(np.asarray)}({expression})"


def _elementwise(ufunc: Any) -> Lowering:
    def lower(xp: TracedNamespace, result: Any, *operands: Any) -> str:
        dtypes = [array.dtype for array in operands if type(array) is ArrayProxy]
        given = xp.text(*[xp.constant(operand, dtypes[0]) for operand in operands])
        given += "" if result.ndim < 2 else xp.order(*operands)
        return _array(xp, f"{xp.name(ufunc)}({given})", result)

    return lower


def _reduction(ufunc: Any) -> Lowering:
    def lower(
        xp: TracedNamespace, result: Any, x: Any, axis: Any = None, keepdims: bool = False
    ) -> str | None:
        if x.dtype.kind not in "fc" or (ufunc is np.add and is_by_channel(x, axis)):
            return None
        given = f"{xp.text(x)}, {xp.text(axis)}" + (", None, None, True" if keepdims else "")
        reduce = f"{ufunc.__name__}_reduce"
        xp._program.known[reduce] = ufunc.reduce
        return _array(xp, f"{reduce}({given})", result)

    return lower


def _matmul(xp: TracedNamespace, result: Any, a: Any, b: Any) -> str | None:
    # With other layouts, or where they share memory, an operand is copied first.
    if not xp.is_fixed or a.ndim != 2 or b.ndim != 2 or np.may_share_memory(a, b):
        return None
    if warns_at_random(a, b):
        return None
    if any(x.itemsize not in (x.strides[-1], x.strides[-2]) for x in (a, b)):
        return None
    return f"{xp.name(np.matmul)}({xp.text(a, b)})"


def _where(xp: TracedNamespace, result: Any, condition: Any, a: Any, b: Any) -> str | None:
    shapes = [getattr(x, "shape", ()) for x in (a, b)]
    if any(shape not in ((), condition.shape) for shape in shapes) or not result.ndim:
        return None
    given = [condition, *[xp.constant(x, result.dtype) for x in (a, b)]]
    return f"{xp.name(direct_where)}({xp.text(*given)})"


def _transpose(xp: TracedNamespace, result: Any, x: Any, axes: Any) -> str:
    return f"{xp.text(x)}.T" if tuple(axes) == (1, 0) else f"{xp.text(x)}.transpose({tuple(axes)})"


def _reshape(xp: TracedNamespace, result: Any, x: Any, shape: Any) -> str:
    return f"{xp.text(x)}.reshape({tuple(shape)})"


def _astype(xp: TracedNamespace, result: Any, x: Any, dtype: Any) -> str:
    return f"{xp.text(x)}.astype({xp.text(np.dtype(dtype))}, 'C')"


def _copy(xp: TracedNamespace, result: Any, x: Any) -> str:
    return f"{xp.text(x)}.copy()"


def _zeros(xp: TracedNamespace, result: Any, shape: Any, dtype: Any) -> str:
    return f"{xp.name(np.zeros)}({xp.text(tuple(shape), np.dtype(dtype))})"


_LOWERED: dict[str, Lowering] = {
    **{name: _elementwise(ufunc) for name, ufunc in {**_BINARY, **_UNARY}.items()},
    "sum": _reduction(np.add),
    "max": _reduction(np.maximum),
    "min": _reduction(np.minimum),
    "matmul": _matmul,
    "where": _where,
    "transpose": _transpose,
    "reshape": _reshape,
    "astype": _astype,
    "copy": _copy,
    "zeros": _zeros,
}
