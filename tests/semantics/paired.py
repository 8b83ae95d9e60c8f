"""``@paired``: one program of a user, run by mpgrad in both modes and by torch, and compared.

A program is a function of the library: it does what a user would do and returns what a user would
see (tensors, numbers, text, errors caught with ``error_of``, in tuples, lists and dictionaries). It
becomes two tests: ``[torch]`` runs it in ``local`` and must give what torch gives, within rounding
(``of_torch``: recorded, and now); ``[process]`` must give the same bits as ``local``. Where torch
has nothing to compare with, ``[local]`` just runs it. ``@row`` names the lines of
``docs/evidence/semantics.md`` that a test shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.recording.tensors.tensor import Tensor
from tests.torch_outcomes import Of, Seen

Program = Callable[[Any], Any]

row = pytest.mark.row

#: So many characters of an error of torch's stand beside what is recorded of it.
NOTED_WORDS = 60


def paired(
    *rows: str, rtol: float = 1e-5, atol: float = 1e-7, torch: bool = True
) -> Callable[[Program], Callable[..., None]]:
    """Make tests of a program ``program(lib)``.

    Args:
        rows: the rows of docs/evidence/semantics.md that it shows.
        rtol, atol: how far values may be from torch's.
        torch: False where torch has nothing to compare with (say why beside it).
    """

    def decorate(program: Program) -> Callable[..., None]:
        kinds = [
            pytest.param("torch" if torch else "local"),
            pytest.param("process", marks=pytest.mark.process),
        ]

        @pytest.mark.parametrize("against", kinds)
        def test(against: str, request: pytest.FixtureRequest, of_torch: Of) -> None:
            with mg.Engine("local"):
                local = seen(program(mg), exact=against != "torch")
            if against == "torch":
                for oracle, theirs in of_torch(lambda lib: seen(program(lib), exact=False)):
                    compare(local, theirs, rtol, atol, oracle)
            elif against == "process":
                request.getfixturevalue("process_engine")
                compare(seen(program(mg), exact=True), local, 0.0, 0.0)

        # pytest reads the signature of `test`, so nothing but names may be taken over.
        test.__name__, test.__qualname__ = program.__name__, program.__qualname__
        test.__doc__, test.__module__ = program.__doc__, program.__module__
        for mark in getattr(program, "pytestmark", ()):
            test.pytestmark.append(mark)  # type: ignore[attr-defined]
        return row(*rows)(test) if rows else test

    return decorate


def seen(value: Any, *, exact: bool) -> Any:
    """``value`` as plain data; ``exact`` keeps the words of errors too."""
    if isinstance(value, dict):
        return {key: seen(item, exact=exact) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [seen(item, exact=exact) for item in value]
    if isinstance(value, BaseException):
        kind, words = type(value).__name__, str(value)
        return Seen("error", f"{kind}: {words}" if exact else kind, note=words[:NOTED_WORDS])
    if isinstance(value, Tensor) or type(value).__module__.startswith("torch"):
        return _tensor(value)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, np.ndarray):
        return Seen("array", f"{value.dtype} {value.shape}", value.copy())
    return value


def _tensor(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return str(value).rpartition(".")[2]  # a dtype, a device, a size
    array = np.array(value.detach().numpy(force=True) if _is_torch(value) else value._array)
    words = f"{array.dtype} {array.shape} requires_grad={value.requires_grad}"
    return Seen("tensor", words, array)


def _is_torch(value: Any) -> bool:
    return type(value).__module__.startswith("torch")


def compare(ours: Any, theirs: Any, rtol: float, atol: float, where: str = "result") -> None:
    """Raise AssertionError, naming the place, if two outcomes differ."""
    if isinstance(ours, Seen) and isinstance(theirs, Seen):
        assert (ours.kind, ours.text) == (theirs.kind, theirs.text), where
        if ours.values is None:
            return
        if rtol == 0.0:
            assert ours.values.tobytes() == theirs.values.tobytes(), f"{where}: {ours} != {theirs}"
            return
        mine = ours.values if theirs.step == 1 else ours.values.reshape(-1)[:: theirs.step]
        np.testing.assert_allclose(mine, theirs.values, rtol, atol, err_msg=where)
        return
    if isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs), f"{where}: {ours} != {theirs}"
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            compare(mine, other, rtol, atol, f"{where}[{index}]")
        return
    if isinstance(ours, dict) and isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in ours:
            compare(ours[key], theirs[key], rtol, atol, f"{where}[{key!r}]")
        return
    if isinstance(ours, float) and isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=rtol, abs=atol, nan_ok=True), where
        return
    assert ours == theirs, f"{where}: {ours!r} != {theirs!r}"


def error_of(function: Callable[[], Any], *words: str) -> BaseException:
    """What ``function`` raises; its text must contain ``words`` (in both libraries)."""
    try:
        result = function()
    except Exception as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"{missing} not in {str(error)!r}") from error
        return error
    raise AssertionError(f"nothing was raised; the result is {result!r}")


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random float64 numbers, normal, the same in every run."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def leaf(lib: Any, *shape: int, seed: int = 0, dtype: str = "float64") -> Any:
    """A leaf that requires grad, filled with :func:`values`."""
    data = lib.tensor(values(*shape, seed=seed), dtype=getattr(lib, dtype))
    return data.requires_grad_()


__all__ = ["compare", "error_of", "leaf", "paired", "row", "seen", "values"]
