"""What a Function's backward reads beside its arguments: wherever it runs, it is what the caller
has now."""

from __future__ import annotations

import decimal
import enum
import locale
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import sparse

import mpgrad as mg
from tests.semantics.functions import define, double
from tests.semantics.paired import leaf, paired

# ---------------------------------------------------------------------- run_on = "worker"

WEIGHTS = np.ones(3)
LARGE = np.ones(20_000)
LIST, DICTIONARY, OBJECT = [1.0], {"key": 1.0}, SimpleNamespace(value=1.0)


def weighted(ctx: Any, grad: Any) -> Any:
    other = 100 * LIST[0] + 1000 * DICTIONARY["key"] + 10_000 * OBJECT.value
    return grad * float(WEIGHTS[0] + 10 * LARGE[-1] + other)


@paired()
def test_what_run_on_worker_reads_is_what_it_is_now(lib: Any) -> Any:
    custom = define(lib, double, weighted, run_on="worker")
    WEIGHTS[:], LARGE[:], LIST[0], DICTIONARY["key"], OBJECT.value = 1.0, 1.0, 1.0, 1.0, 1.0
    changes = [
        lambda: None,
        lambda: np.put(WEIGHTS, 0, 2.0),
        lambda: np.put(LARGE, -1, 2.0),
        lambda: LIST.__setitem__(0, 2.0),
        lambda: DICTIONARY.update(key=2.0),
        lambda: vars(OBJECT).update(value=2.0),
        lambda: None,
    ]
    seen = []
    for change in changes:
        change()
        x = leaf(lib, 2)
        custom.apply(x).sum().backward()
        seen.append(x.grad[0].item())
    assert seen == [11111, 11112, 11122, 11222, 12222, 22222, 22222]
    return seen


# ---------------------------------------------------------------------- what is brought along


def as_decimal(ctx: Any, grad: Any) -> Any:
    return grad * float(len(str(decimal.Decimal(1) / decimal.Decimal(3))))


def from_a_file(ctx: Any, grad: Any) -> Any:
    with open("factor.txt") as file:
        return grad * float(file.read())


def as_deep_as_it_goes(ctx: Any, grad: Any) -> Any:
    return grad * deep(3000)


def deep(levels: int) -> float:
    return 1.0 + deep(levels - 1) if levels else 0.0


def printed(ctx: Any, grad: Any) -> Any:
    return grad * float(len(str(np.array([1 / 3]))))


def with_locale(ctx: Any, grad: Any) -> Any:
    return grad * (7.0 if locale.getlocale(locale.LC_NUMERIC)[1] == "UTF-8" else 1.0)


def many_digits(ctx: Any, grad: Any) -> Any:
    return grad * float(len(str(10**5000)))


def buffer_size(ctx: Any, grad: Any) -> Any:
    return grad * float(np.getbufsize())


def set_to(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Any:
    @contextmanager
    def change() -> Iterator[None]:
        before = get()
        put(value)
        try:
            yield
        finally:
            put(before)

    return change()


def numeric_locale(name: str | None = None) -> str:
    return locale.setlocale(locale.LC_NUMERIC, name)


def decimals(count: int) -> Any:
    return decimal.localcontext(decimal.Context(prec=count))


def calls(limit: int) -> Any:
    return set_to(sys.getrecursionlimit, sys.setrecursionlimit, limit)


def digits(count: int) -> Any:
    return set_to(sys.get_int_max_str_digits, sys.set_int_max_str_digits, count)


def printing(precision: int) -> Any:
    return np.printoptions(precision=precision)


def buffered(elements: int) -> Any:
    return set_to(np.getbufsize, np.setbufsize, elements)


def numbers_as_in(name: str) -> Any:
    return set_to(numeric_locale, numeric_locale, name)


#: A rule, and surroundings of it, one after the other.
BROUGHT_ALONG: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "decimal context": (as_decimal, decimals, (50, 5)),
    "recursion limit": (as_deep_as_it_goes, calls, (5000, 20_000)),
    "print options": (printed, printing, (3, 6)),
    "digits of integers": (many_digits, digits, (6000, 0)),
    "locale": (with_locale, numbers_as_in, ("C.UTF-8", "C")),
    "size of buffers": (buffer_size, buffered, (16_384, 32_768)),
}


@paired()
def test_settings_of_the_caller(lib: Any) -> Any:
    seen: dict[str, list[float]] = {}
    for name, (rule, setting, choices) in BROUGHT_ALONG.items():
        custom = define(lib, double, rule)
        for choice in choices:
            with setting(choice):
                x = leaf(lib, 2)
                custom.apply(x).sum().backward()
            seen.setdefault(name, []).append(x.grad[0].item())
        if name not in ("recursion limit", "digits of integers"):  # there it raises, or not
            assert len(set(seen[name])) == len(choices)
    return seen


@paired()
def test_the_working_directory(lib: Any) -> Any:
    custom = define(lib, double, from_a_file)
    seen = []
    for factor in ("2.0", "5.0"):
        with tempfile.TemporaryDirectory() as name, set_to(Path.cwd, os.chdir, name):
            Path("factor.txt").write_text(factor)
            x = leaf(lib, 2)
            custom.apply(x).sum().backward()
            seen.append(x.grad[0].item())
    assert seen == [2.0, 5.0]
    return seen


@pytest.mark.process
def test_these_functions_run_in_workers(process_engine: mg.Engine) -> None:
    """But for one that reads a file, which others may write meanwhile."""
    for rule, _, _ in BROUGHT_ALONG.values():
        explanation = process_engine.explain(define(mg, double, rule).apply(leaf(mg, 2)))
        (node,) = [node for node in explanation.nodes if node.name.startswith("Custom")]
        assert node.where == "worker", node.reason


# ---------------------------------------------------------------------- on ctx


class Kind(enum.Enum):
    SMALL = 1
    LARGE = 2


class Lens(NamedTuple):
    """A member of what is on ctx."""

    focus: float
    kind: Kind = Kind.LARGE

    def scale(self) -> float:
        return self.focus * self.kind.value


@dataclass(frozen=True)
class Camera:
    """Immutable, with a method, an array and a default that is made."""

    lens: Lens
    matrix: Any = field(compare=False)  # two arrays have no one truth value
    weights: tuple[float, ...] = field(default_factory=tuple)

    def project(self, value: float) -> float:
        return value * self.lens.scale() + float(self.matrix.sum())


def with_camera(ctx: Any, x: Any) -> Any:
    ctx.camera = Camera(Lens(3.0), np.ones(2000))
    ctx.settings = MappingProxyType({"scale": 2.0, "lens": Lens(1.0, Kind.SMALL)})
    return x * 2


def by_camera(ctx: Any, grad: Any) -> Any:
    is_same = type(ctx.camera) is Camera and isinstance(ctx.camera.lens, Lens)
    is_same = is_same and ctx.camera.lens.kind is Kind.LARGE and replace(ctx.camera) == ctx.camera
    scale = ctx.settings["lens"].scale() if is_same else 0.0
    return grad * ctx.camera.project(ctx.settings["scale"]) * scale


@paired()
def test_what_cannot_change_may_stand_on_ctx(lib: Any) -> Any:
    x = leaf(lib, 3)
    define(lib, with_camera, by_camera).apply(x).sum().backward()
    assert x.grad[0].item() == 2012.0
    return x.grad


def with_sparse(ctx: Any, x: Any) -> Any:
    rows, columns = np.array([0, 0, 1, 2]), np.array([2, 0, 1, 2])
    ctx.system = sparse.csr_matrix((np.arange(1.0, 5.0), columns, [0, 2, 3, 4]), shape=(3, 3))
    ctx.others = (sparse.coo_array((np.ones(4), (rows, columns)), shape=(3, 3)),)
    assert not ctx.system.has_sorted_indices
    return x * 2


def by_sparse_values(ctx: Any, grad: Any) -> Any:
    ones = np.ones(3)
    ctx.system.sort_indices()  # in place
    return grad * float(((ctx.system @ ones) + (ctx.others[0].T @ ones)) @ np.arange(1.0, 4.0))


@paired()
def test_sparse_matrices_may_stand_on_ctx(lib: Any) -> Any:
    x = leaf(lib, 3)
    define(lib, with_sparse, by_sparse_values).apply(x).sum().backward()
    return x.grad


@pytest.mark.process
@pytest.mark.parametrize(
    ("forward", "backward"), [(with_camera, by_camera), (with_sparse, by_sparse_values)]
)
def test_they_run_in_workers(process_engine: mg.Engine, forward: Any, backward: Any) -> None:
    explanation = process_engine.explain(define(mg, forward, backward).apply(leaf(mg, 3)))
    (node,) = [node for node in explanation.nodes if node.name.startswith("Custom")]
    assert node.where == "worker", node.reason
