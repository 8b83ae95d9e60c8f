"""What natural Functions read by name, and what they set on ctx: 53 and 43 kinds, as source.

``python -m tests.process.natural_kinds`` prints where each of them runs, and why not on a worker.
"""

from __future__ import annotations

import itertools
import sys
import types
import warnings
from typing import Any, NamedTuple

import mpgrad as mg
from mpgrad.engine.spot_checks import SpotChecks

HEAD = """
import array, collections, dataclasses, datetime, decimal, enum, fractions, functools, itertools
import logging, math, operator, os, pathlib, random, re, string, threading, time, types, uuid
import numpy as np
import scipy.interpolate, scipy.linalg, scipy.sparse, scipy.sparse.linalg, scipy.spatial
import scipy.stats
from scipy import sparse
from scipy.interpolate import CubicSpline
from scipy.linalg import solve
from scipy.sparse.linalg import splu
import mpgrad as mg

class Plain:
    def __init__(self, scale=2.0):
        self.scale = scale
        self.table = {"a": [1.0, 2.0]}
    def scaled(self, x):
        return self.scale * x
    @property
    def twice(self):
        return 2 * self.scale
    def __call__(self, x):
        return self.scale + x

class Slots:
    __slots__ = ("scale",)
    def __init__(self):
        self.scale = 3.0

class Limits:
    LOW = 0.5
    TABLE = [1.0, 4.0]

@dataclasses.dataclass
class Open:
    scale: float = 2.0
    steps: list = dataclasses.field(default_factory=lambda: [1, 2])

@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 2.0

class Point(typing.NamedTuple):
    x: float
    y: float

class Color(enum.Enum):
    RED = 1.5
""".replace("uuid\n", "uuid, typing\n")


class Kind(NamedTuple):
    """``top`` is source of the module; ``value`` an expression in backward; ``on_ctx`` one in
    forward, whose value is ``ctx.it``."""

    value: str
    top: str = ""
    on_ctx: str = ""


READS: dict[str, Kind] = {
    "float": Kind("X", "X = 2.0"),
    "tuple": Kind("X[1]", "X = (1.0, 2.0)"),
    "string": Kind("len(X)", "X = 'abc'"),
    "enum": Kind("Color.RED.value"),
    "frozen dataclass": Kind("X.scale", "X = Frozen(3.0)"),
    "namedtuple": Kind("X.y", "X = Point(1.0, 2.0)"),
    "function": Kind("f(2.0)", "def f(x): return x * 3"),
    "lambda": Kind("f(2.0)", "f = lambda x: x * 3"),
    "closure": Kind("f(2.0)", "def make(k):\n    return lambda x: x * k\nf = make(4.0)"),
    "partial": Kind("f(2.0)", "f = functools.partial(operator.mul, 3.0)"),
    "class attribute": Kind("Limits.LOW"),
    "ufunc": Kind("f(2.0)", "f = np.cosh"),
    "SciPy's function": Kind("float(solve(np.eye(2) * 2, np.ones(2))[0])"),
    "array": Kind("float(X[1])", "X = np.arange(3.0)"),
    "array in a product": Kind("float((X @ np.ones(3))[1])", "X = np.eye(3) * 2"),
    "Fortran array": Kind("float(X.sum())", "X = np.asfortranarray(np.arange(6.0).reshape(2, 3))"),
    "0-d array": Kind("float(X)", "X = np.array(2.5)"),
    "boolean mask": Kind("float(np.arange(3.0)[X].sum())", "X = np.array([True, False, True])"),
    "strings in an array": Kind("len(X[0])", "X = np.array(['ab', 'c'])"),
    "lru_cache": Kind("f(3)", "@functools.lru_cache\ndef f(n): return float(n * n)"),
    "pattern": Kind("len(X.findall('aab'))", "X = re.compile('a')"),
    "date": Kind("X.year", "X = datetime.date(2020, 1, 2)"),
    "Decimal": Kind("X", "X = decimal.Decimal('2.5')"),
    "dtype": Kind("X.itemsize", "X = np.dtype('f4')"),
    "range": Kind("sum(X)", "X = range(4)"),
    "list": Kind("X[1]", "X = [1.0, 2.0]"),
    "nested list": Kind("X[0][1]", "X = [[1.0, 2.0], [3.0]]"),
    "dict": Kind("X['k']", "X = {'k': 2.0}"),
    "dict of arrays": Kind("float(X['k'][1])", "X = {'k': np.arange(3.0), 'l': np.ones(2)}"),
    "list of arrays": Kind("float(sum(a.sum() for a in X))", "X = [np.ones(2), np.arange(3.0)]"),
    "object": Kind("X.scaled(2.0) + X.twice", "X = Plain()"),
    "callable object": Kind("X(2.0)", "X = Plain()"),
    "bound method": Kind("f(2.0)", "f = Plain(3.0).scaled"),
    "object with slots": Kind("X.scale", "X = Slots()"),
    "dataclass": Kind("X.scale + X.steps[1]", "X = Open()"),
    "SimpleNamespace": Kind("X.scale", "X = types.SimpleNamespace(scale=2.0)"),
    "list of a class": Kind("Limits.TABLE[1]"),
    "set of numbers": Kind("float(2 in X)", "X = {1, 2, 3}"),
    "defaultdict": Kind("X['k']", "X = collections.defaultdict(float, k=2.0)"),
    "deque": Kind("X[0]", "X = collections.deque([2.0, 3.0])"),
    "OrderedDict": Kind("X['k']", "X = collections.OrderedDict(k=2.0)"),
    "Counter": Kind("X['a']", "X = collections.Counter('aab')"),
    "csr matrix": Kind("float((X @ np.ones(3))[1])", "X = scipy.sparse.eye(3, format='csr') * 2"),
    "spline": Kind("float(X(0.5))", "X = CubicSpline([0, 1, 2], [0, 1, 4.0])"),
    "frozen distribution": Kind("float(X.pdf(0.5))", "X = scipy.stats.norm(0, 1)"),
    "strided array": Kind("float(X.sum())", "X = np.arange(12.0).reshape(3, 4)[:, ::2]"),
    "tensor": Kind("float(X.sum())", "X = mg.arange(3.0)"),
    "module": Kind("float(X(mg.ones(2)).sum())", "X = mg.nn.Linear(2, 2)"),
    "list as a default": Kind("f(2.0)", "def f(x, k=[3.0]): return x * k[0]"),
    "environment": Kind("len(os.environ.get('HOME', ''))"),
    "clock of the zone": Kind("float(time.localtime().tm_year > 2000)"),
    "Generator": Kind("X.random()", "X = np.random.default_rng(0)"),
    "lock": Kind("float(X.locked())", "X = threading.Lock()"),
}  # fmt: skip

ON_CTX: dict[str, Kind] = {
    name: Kind(value, top, on_ctx)
    for name, (value, on_ctx, top) in {
        "float": ("ctx.it", "2.0", ""),
        "string": ("len(ctx.it)", "'abc'", ""),
        "tuple": ("ctx.it[1]", "(1.0, 2.0)", ""),
        "array": ("float(ctx.it[1])", "np.arange(3.0)", ""),
        "Fortran array": ("float(ctx.it[1, 1])", "np.asfortranarray(np.eye(3))", ""),
        "tensor": ("float(ctx.it.sum())", "mg.arange(3.0)", ""),
        "list": ("ctx.it[1]", "[1.0, 2.0]", ""),
        "dict": ("ctx.it['k']", "{'k': 2.0}", ""),
        "list of arrays": ("float(ctx.it[1].sum())", "[np.ones(2), np.arange(3.0)]", ""),
        "slice": ("float(np.arange(3.0)[ctx.it].sum())", "slice(1, 3)", ""),
        "enum": ("ctx.it.value", "Color.RED", ""),
        "frozen dataclass": ("ctx.it.scale", "Frozen(3.0)", ""),
        "namedtuple": ("ctx.it.y", "Point(1.0, 2.0)", ""),
        "csr matrix": ("float((ctx.it @ np.ones(3))[1])", "scipy.sparse.eye(3, format='csr')", ""),
        "csc matrix": ("float(ctx.it.toarray()[1, 1])", "scipy.sparse.eye(3, format='csc')", ""),
        "dtype": ("ctx.it.itemsize", "np.dtype('f8')", ""),
        "ufunc": ("float(ctx.it(2.0))", "np.cosh", ""),
        "NumPy's function": ("float(ctx.it(np.ones(2)))", "np.sum", ""),
        "shared list": ("ctx.it[1]", "X", "X = [1.0, 2.0]"),
        "shared dict": ("ctx.it['k']", "X", "X = {'k': 2.0}"),
        "nested lists": ("ctx.it[0][1]", "[[1.0, 2.0], X]", "X = [3.0]"),
        "object": ("ctx.it.scaled(2.0)", "Plain()", ""),
        "shared object": ("ctx.it.scaled(2.0)", "X", "X = Plain()"),
        "callable object": ("ctx.it(2.0)", "Plain()", ""),
        "object with slots": ("ctx.it.scale", "Slots()", ""),
        "dataclass": ("ctx.it.scale + ctx.it.steps[1]", "Open()", ""),
        "SimpleNamespace": ("ctx.it.scale", "types.SimpleNamespace(scale=2.0)", ""),
        "set of numbers": ("float(2 in ctx.it)", "{1, 2, 3}", ""),
        "defaultdict": ("ctx.it['k']", "collections.defaultdict(float, k=2.0)", ""),
        "deque": ("ctx.it[0]", "collections.deque([2.0])", ""),
        "OrderedDict": ("ctx.it['k']", "collections.OrderedDict(k=2.0)", ""),
        "Counter": ("ctx.it['a']", "collections.Counter('aab')", ""),
        "list of objects": ("ctx.it[0].scale", "[Plain(), Plain(3.0)]", ""),
        "dict of objects": ("ctx.it['k'].scale", "{'k': Plain()}", ""),
        "spline": ("float(ctx.it(0.5))", "CubicSpline([0, 1, 2], [0, 1, 4.0])", ""),
        "frozen distribution": ("float(ctx.it.pdf(0.5))", "scipy.stats.norm(0, 1)", ""),
        "KD tree": ("float(ctx.it.query([0.1])[0])", "scipy.spatial.cKDTree([[0.0], [1.0]])", ""),
        "strided array": ("float(ctx.it.sum())", "np.arange(12.0).reshape(3, 4)[:, ::2]", ""),
        "masked array": ("float(ctx.it.sum())", "np.ma.array([1.0, 2.0], mask=[0, 1])", ""),
        "datetime": ("ctx.it.year", "datetime.datetime(2020, 1, 2)", ""),
        "module": ("float(ctx.it(mg.ones(2)).sum())", "X", "X = mg.nn.Linear(2, 2)"),
        "SuperLU": ("float(ctx.it.solve(np.ones(3))[0])", "splu(sparse.csc_matrix(np.eye(3)))", ""),
        "Generator": ("ctx.it.random()", "np.random.default_rng(0)", ""),
    }.items()
}  # fmt: skip

_numbers = itertools.count()
_sent = [0]


def count_functions() -> None:
    """Let ``runs`` know how many Functions went to workers."""
    if getattr(SpotChecks.chooses, "counted", False):
        return
    chooses = SpotChecks.chooses

    def counted(self: SpotChecks, *arguments: Any, **words: Any) -> bool:
        _sent[0] += 1
        return chooses(self, *arguments, **words)

    counted.counted = True  # type: ignore[attr-defined]
    SpotChecks.chooses = counted  # type: ignore[method-assign]


def number_sent() -> int:
    """How many Functions workers have run since ``count_functions``."""
    return _sent[0]


def program(kind: Kind) -> types.ModuleType:
    """A module whose ``loss()`` has two Nodes of a Function ``F`` of this kind."""
    name = f"natural_{next(_numbers)}"
    set_it = f"ctx.it = {kind.on_ctx}" if kind.on_ctx else "pass"
    source = f"""{HEAD}
{kind.top}

class F(mg.Function):
    @staticmethod
    def forward(ctx, x):
        {set_it}
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        return grad * float({kind.value})

def loss(x):
    return (F.apply(x) + F.apply(x * 2)).sum()
"""
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


def runs(module: Any, backwards: int) -> tuple[list[bytes], int]:
    """The gradients of some backwards, and how many of the last one's Functions workers ran."""
    bits, before = [], 0
    for _ in range(backwards):
        before = _sent[0]
        x = mg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        module.loss(x).backward()
        assert x.grad is not None
        bits.append(x.grad.numpy().tobytes())
    return bits, _sent[0] - before


def main() -> None:
    count_functions()
    for title, kinds in (("reads", READS), ("on ctx", ON_CTX)):
        in_workers = 0
        with mg.Engine("process", cpu_workers=2):
            for name, kind in kinds.items():
                mg.manual_seed(0)
                module = program(kind)
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    try:
                        _, sent = runs(module, 3)
                        where = "worker" if sent == 2 else "client"
                    except Exception as error:
                        sent, where = 0, f"{type(error).__name__}: {error}"[:200]
                in_workers += sent == 2
                print(f"{title:7} {name:22} {where}", *[str(one.message) for one in said][:1])
        print(f"{title}: {in_workers} of {len(kinds)} in workers", flush=True)


if __name__ == "__main__":
    main()
