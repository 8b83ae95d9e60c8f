"""The verdict on one operator: each thing that was tried, how often, and the first difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.operator_database import database
from tests.operator_database.comparison import (
    Call,
    arrays_of,
    attempt,
    derivatives,
    difference,
    shares_memory,
)
from tests.operator_database.database import (
    UP_TO_SIGN,
    CannotBeHad,
    converted,
    function_for,
    function_named,
    is_random,
)

#: Of equal elements PyTorch gives any one: places are compared where few are equal.
TIES = frozenset({"argsort", "kthvalue", "median", "mode", "msort", "sort", "topk"})
#: Samples of each entry of the database: in float64, and in each of the other dtypes.
MOST, FEW = 6, 2
OTHER_DTYPES = ("float32", "complex128", "int64", "int32", "uint8", "bool", "float16")


@dataclass
class Verdict:
    """What came of one operator. ``tried`` and ``right``: by the thing that was tried."""

    name: str
    is_here: bool = True
    tried: dict[str, int] = field(default_factory=dict)
    right: dict[str, int] = field(default_factory=dict)
    #: Each thing's first difference.
    differs: dict[str, str] = field(default_factory=dict)

    def note(self, thing: str, text: str) -> None:
        """One trial of ``thing``, right where ``text`` is empty."""
        self.tried[thing] = self.tried.get(thing, 0) + 1
        if text:
            self.differs.setdefault(thing, text)
        else:
            self.right[thing] = self.right.get(thing, 0) + 1


def judge(library: Any, torch: Any, name: str, entries: list[Any]) -> Verdict:
    """Try the operator ``name`` on the samples of its entries."""
    verdict = Verdict(name)
    if function_named(library, name) is None or function_named(torch, name) is None:
        verdict.is_here = False
        return verdict
    for entry in entries:
        functions = tuple(function_for(one, torch, name, entry) for one in (library, torch))
        for sample in database.samples(entry, torch.float64, MOST):
            _try(verdict, library, torch, functions, entry, sample)
        for dtype in OTHER_DTYPES:
            for sample in database.samples(entry, getattr(torch, dtype), FEW):
                _try_values(verdict, library, torch, functions, sample, dtype)
        for sample in database.wrong_arguments(entry):
            _try_errors(verdict, library, torch, functions, sample)
    return verdict


def _calls(library: Any, torch: Any, sample: Call) -> Iterator[Callable[[Any], Call]]:
    """For each library, what makes the arguments anew."""
    for one in (library, torch):

        def make(one: Any = one) -> Call:
            return converted(sample, one, torch)

        yield make


def _run(function: Any, make: Any) -> Any:
    def run() -> Any:
        args, kwargs = make()
        return arrays_of(function(*args, **kwargs))

    return attempt(run)


def _try_values(
    verdict: Verdict, library: Any, torch: Any, functions: Any, sample: Call, thing: str
) -> bool:
    """Whether there was something to compare, and it was right."""
    try:
        make, make_torch = _calls(library, torch, sample)
        expected = _run(functions[1], make_torch)
        if isinstance(expected, Exception):
            return False
        ties = verdict.name in TIES and thing != "float64"
        found, values = _run(functions[0], make), not is_random(verdict.name, sample[1])
        text = difference(found, expected, values=values, ties=ties)
    except CannotBeHad:
        return False
    verdict.note(thing, _with_sample(text, sample))
    return not text


def _try(
    verdict: Verdict, library: Any, torch: Any, functions: Any, entry: Any, sample: Call
) -> None:
    if not _try_values(verdict, library, torch, functions, sample, "float64"):
        return
    make, make_torch = _calls(library, torch, sample)
    here, there = functions
    values = not is_random(verdict.name, sample[1])

    def compare(thing: str, run: Callable[[Any, Any, Any], Any]) -> None:
        expected = attempt(lambda: run(torch, there, make_torch))
        if not isinstance(expected, Exception):
            found = attempt(lambda: run(library, here, make))
            signed = thing == "out=" and verdict.name in UP_TO_SIGN
            text = difference(found, expected, values=values and not signed)
            verdict.note(thing, _with_sample(text, sample))

    compare("memory", _memory)
    if entry.supports_autograd and values:
        compare("gradient", lambda lib, f, m: derivatives(lib, f, m(), 1))
        if entry.supports_gradgrad:
            compare("second gradient", lambda lib, f, m: derivatives(lib, f, m(), 2))
    if entry.supports_out:
        compare("out=", _out)
    for thing, variant in (("method", entry.method_variant), ("in place", entry.inplace_variant)):
        called = getattr(variant, "__name__", "")
        if called and hasattr(torch.Tensor, called):
            compare(thing, lambda lib, f, m, called=called: _method(lib, m, called))
    for thing, variant in (
        ("operator", entry.operator_variant),
        ("in-place operator", entry.inplace_operator_variant),
    ):
        if variant is not None:
            compare(thing, lambda lib, f, m, variant=variant: _operator(m, variant))


def _memory(library: Any, function: Any, make: Any) -> Any:
    args, kwargs = make()
    return shares_memory(function(*args, **kwargs), [args, kwargs], library)


def _method(library: Any, make: Any, name: str) -> Any:
    (first, *others), kwargs = make()
    result = getattr(first, name)(*others, **kwargs)
    return (arrays_of(result), arrays_of(first))


def _operator(make: Any, variant: Any) -> Any:
    args, kwargs = make()
    return (arrays_of(variant(*args, **kwargs)), arrays_of(args[0]))


def _out(library: Any, function: Any, make: Any) -> Any:
    args, kwargs = make()
    result = function(*args, **kwargs)
    several = isinstance(result, list | tuple)
    outs = tuple(library.zeros_like(item) for item in (result if several else (result,)))
    out = outs if several else outs[0]
    args, kwargs = make()
    returned = function(*args, **kwargs, out=out)
    same = all(a is b for a, b in zip(returned if several else (returned,), outs, strict=True))
    return (arrays_of(outs), same)


def _try_errors(verdict: Verdict, library: Any, torch: Any, functions: Any, sample: Call) -> None:
    try:
        make, make_torch = _calls(library, torch, sample)
        expected = _run(functions[1], make_torch)
        if not isinstance(expected, Exception):
            return
        found = _run(functions[0], make)
    except CannotBeHad:
        return
    kind = next(kind for kind in type(expected).mro() if kind.__module__ == "builtins")
    text = ""
    if not isinstance(found, Exception):
        text = f"no {kind.__name__} ({' '.join(str(expected).split())[:90]})"
    elif not isinstance(found, kind):
        text = f"{type(found).__name__} ({' '.join(str(found).split())[:60]}), not {kind.__name__}"
    verdict.note("errors", _with_sample(text, sample))


def _with_sample(text: str, sample: Call) -> str:
    if not text:
        return ""
    args, kwargs = sample
    parts = [_word(arg) for arg in args] + [f"{k}={_word(v)}" for k, v in kwargs.items()]
    return f"{text} for ({', '.join(parts)[:150]})"


def _word(value: Any) -> str:
    if hasattr(value, "detach"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_word(item) for item in value)})"
    return str(value).removeprefix("torch.")
