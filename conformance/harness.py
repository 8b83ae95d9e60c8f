"""What PyTorch's tests take from PyTorch's test framework, of our own writing.

``given`` knows it by the names that the tests import.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import math
import random
import re
import unittest
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import mpgrad as mg

_UTILS = "torch.testing._internal.common_utils."

#: By the dtype, how far values may be apart, relatively and absolutely.
_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
_NUMBERS = (int, float, complex, np.number)


# ---------------------------------------------------------------------- comparison


def difference(
    x: Any, y: Any, tolerance: tuple[float, float] | None = None, *, same_dtype: bool = True
) -> str | None:
    """How x and y differ, in words; None if they count as equal.

    Args:
        x, y: tensors, numbers, sequences and mappings of them, or anything with ``==``.
        tolerance: relative and absolute; by default that of the dtype.
        same_dtype: whether tensors must have one.
    """
    if isinstance(x, mg.Tensor | np.ndarray) or isinstance(y, mg.Tensor | np.ndarray):
        return _array_difference(x, y, tolerance, same_dtype)
    if isinstance(x, _NUMBERS) and isinstance(y, _NUMBERS):
        close = tolerance or ((0.0, 0.0) if _exact(x, y) else _TOLERANCES["float32"])
        same = bool(np.isclose(x, y, *close, equal_nan=True))
        return None if same else f"{x!r} != {y!r}"
    if isinstance(x, Mapping) and isinstance(y, Mapping) and set(x) == set(y):
        pairs = [(x[key], y[key]) for key in x]
    elif _is_sequence(x) and _is_sequence(y) and len(x) == len(y):
        pairs = list(zip(x, y, strict=True))
    else:
        return None if x == y else f"{x!r} != {y!r}"
    found = (difference(a, b, tolerance, same_dtype=same_dtype) for a, b in pairs)
    return next(filter(None, found), None)


def _exact(*values: Any) -> bool:
    return all(isinstance(value, bool | int | np.integer) for value in values)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _array_difference(
    x: Any, y: Any, tolerance: tuple[float, float] | None, same_dtype: bool
) -> str | None:
    if x is None or y is None or isinstance(x, str) or isinstance(y, str):
        return f"{x!r} != {y!r}"
    one, other = _array(x), _array(y)
    numbers = isinstance(x, _NUMBERS) or isinstance(y, _NUMBERS)
    if numbers and one.size == other.size == 1:
        one, other = one.reshape(()), other.reshape(())
    if one.shape != other.shape:
        return f"shapes {one.shape} and {other.shape} differ"
    tensors = isinstance(x, mg.Tensor) and isinstance(y, mg.Tensor)
    if tensors and same_dtype and one.dtype != other.dtype:
        return f"dtypes {one.dtype} and {other.dtype} differ"
    known = [_TOLERANCES.get(array.dtype.name, (0.0, 0.0)) for array in (one, other)]
    with np.errstate(all="ignore"):
        same = np.isclose(one, other, *(tolerance or max(known)), equal_nan=True)
    return None if same.all() else f"{one.tolist()} != {other.tolist()}"[:300]


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, mg.Tensor):
        return value.detach().numpy(force=True)
    if _is_sequence(value):
        return np.asarray([_array(item) for item in value])
    return np.asarray(value)


# ---------------------------------------------------------------------- the base of the tests


class TestCase(unittest.TestCase):
    """The base class of PyTorch's test classes."""

    __test__ = False
    #: Where the texts lie that ``assertExpected`` compares with.
    expected_folder = Path()

    def setUp(self) -> None:
        random.seed(1234)
        np.random.seed(1234)
        mg.manual_seed(1234)

    def assertEqual(  # type: ignore[override]
        self,
        x: Any,
        y: Any,
        msg: Any = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        exact_dtype: bool = True,
        **_: Any,
    ) -> None:
        tolerance = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
        found = difference(x, y, tolerance, same_dtype=exact_dtype)
        if found is not None:
            raise self.failureException(msg(found) if callable(msg) else msg or found)

    def assertNotEqual(  # type: ignore[override]
        self, x: Any, y: Any, msg: Any = None, **options: Any
    ) -> None:
        tolerance = (options.get("rtol") or 0.0, options.get("atol") or 0.0)
        if difference(x, y, tolerance) is None:
            raise self.failureException(msg or f"{x!r} == {y!r}")

    def assertRaisesRegex(  # type: ignore[override]
        self, kind: Any, pattern: Any, *args: Any, **options: Any
    ) -> Any:
        """A message may call the library by its name."""
        pattern = re.sub(r"\btorch\b(?!::)", "(?:torch|mpgrad|mg)", pattern)
        return super().assertRaisesRegex(kind, pattern, *args, **options)  # noqa: PT027

    def assertNotWarn(self, function: Callable[[], Any], msg: str = "") -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function()
        if caught:
            raise self.failureException(f"unexpected warning: {caught[0].message} {msg}")

    @contextmanager
    def assertWarnsOnceRegex(self, category: Any, regex: str = "") -> Iterator[None]:
        with self.assertWarnsRegex(category, regex):
            yield

    def assertExpected(self, text: str, subname: str) -> None:
        name = ".".join(self.id().split(".")[-2:])
        file = self.expected_folder / f"{name}-{subname}.expect"
        self.assertEqual(text.strip(), file.read_text().strip())  # noqa: PT009

    def assertExpectedInline(self, actual: str, expected: str, *_: Any, **__: Any) -> None:
        self.assertEqual(actual, expected)  # noqa: PT009


# ---------------------------------------------------------------------- the rest of the framework


class Lenient:
    """A decorator that changes nothing, a factory of such, a device that is not there."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        (decorated, *others) = args or (None,)
        if options or others or not (inspect.isroutine(decorated) or inspect.isclass(decorated)):
            return self
        return decorated

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getattr__(self, name: str) -> Lenient:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __add__(self, other: Any) -> Lenient:
        return self

    __radd__ = __add__


def parametrize(names: str, values: Any, **_: Any) -> Callable[[Any], Any]:
    """Note on a test with which arguments it is run."""
    keys = [name.strip() for name in names.split(",")]
    rows = [dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)) for row in values]

    def decorate(test: Any) -> Any:
        known = getattr(test, "variants", [{}])
        test.variants = [row | other for row, other in itertools.product(rows, known)]
        return test

    return decorate


@contextmanager
def disable_gc() -> Iterator[None]:
    """Without the cyclic garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def set_warn_always_context(value: bool) -> Iterator[None]:
    """Nothing here is warned of once per process alone."""
    yield


class WeakTensorRef:
    """Asks whether a tensor is still there."""

    def __init__(self, tensor: mg.Tensor) -> None:
        self._reference = weakref.ref(tensor)

    def expired(self) -> bool:
        """Whether it is not."""
        return self._reference() is None


def assert_close(actual: Any, expected: Any, *, msg: str | None = None, **options: Any) -> None:
    """``torch.testing.assert_close``."""
    tolerance = None
    if "rtol" in options or "atol" in options:
        tolerance = options.get("rtol") or 0.0, options.get("atol") or 0.0
    found = difference(actual, expected, tolerance, same_dtype=options.get("check_dtype", True))
    if found is not None:
        raise AssertionError(msg or found)


def _without_none(check: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(check)
    def checked(*args: Any, **options: Any) -> bool:
        return check(*args, **{key: value for key, value in options.items() if value is not None})

    return checked


_GIVEN: dict[str, Any] = {
    f"{_UTILS}TestCase": TestCase,
    f"{_UTILS}parametrize": parametrize,
    f"{_UTILS}disable_gc": disable_gc,
    f"{_UTILS}set_warn_always_context": set_warn_always_context,
    f"{_UTILS}gradcheck": _without_none(mg.autograd.gradcheck),
    f"{_UTILS}gradgradcheck": _without_none(mg.autograd.gradgradcheck),
    "torch.inf": math.inf,
    "torch.nan": math.nan,
    "torch.pi": math.pi,
    "torch.autograd.forward_ad._current_level": -1,
    "torch.backends.mkldnn": Lenient(),
    "torch.profiler.itt": Lenient(),
    "torch.backends.mps": Lenient(),
    "torch.xpu": Lenient(),
    "torch._C._WeakTensorRef": WeakTensorRef,
    "torch.testing.assert_close": assert_close,
}


def given(name: str) -> Any:
    """What stands for PyTorch's ``name`` whatever mpgrad has; None if nothing does.

    What the test framework has besides is for tests that are not run here.
    """
    found = _GIVEN.get(name)
    module, _, _ = name.rpartition(".")
    if found is None and module.startswith("torch.testing._internal."):
        return Lenient()
    return found
