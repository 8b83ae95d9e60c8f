"""Where a Function's backward may run. A wrong "worker" here would be a silent wrong gradient."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import itertools
import math
import pathlib
import queue
import random
import re
import subprocess
import sys
import textwrap
import types
from importlib.machinery import EXTENSION_SUFFIXES

import cloudpickle
import numpy as np
import pytest
from scipy import sparse
from scipy.interpolate import CubicSpline
from scipy.sparse import linalg

import mpgrad as mg
from mpgrad.autograd.function import Function, FunctionContext, run_function_backward
from mpgrad.calls.custom_functions import loading
from mpgrad.calls.custom_functions import run_on as decisions
from mpgrad.calls.custom_functions.attributes import are_scalars, look_at, pack_attributes
from mpgrad.calls.custom_functions.loading import load
from mpgrad.calls.custom_functions.remedies import in_words
from mpgrad.calls.custom_functions.run_on import decide
from mpgrad.recording.graph.node import InputMetadata
from mpgrad.recording.tensors.tensor import Tensor

_numbers = itertools.count()


class Holder:
    """An object of a class of the user, on a ctx."""


class Copied:
    """It says how it is copied."""

    def __getstate__(self):
        return {}


HEADER = """
import enum
import functools
import math
import pathlib
import numpy as np
import mpgrad as mg
from mpgrad.autograd.function import Function, once_differentiable
"""

#: {names} at module level, {body} in backward; the gradient is `grad._array * value`.
TEMPLATE = """
{names}

class Custom(Function):
    {members}

    @staticmethod
    def forward(ctx, x):
        return x._array

    @staticmethod
    {decorators}
    def backward(ctx, grad):
        {body}
        return grad._array * value
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Write and import a module of the user's."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def create(source, name=None):
        name = name or f"user_code_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(HEADER + textwrap.dedent(source))
        importlib.invalidate_caches()
        names.append(name)
        return importlib.import_module(name)

    yield create
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def custom(user_module):
    """A module whose class Custom has the given parts."""

    def create(body, names="", members="", decorators=""):
        body = textwrap.dedent(body).strip().replace("\n", "\n        ")
        source = TEMPLATE.format(
            names=textwrap.dedent(names),
            members=textwrap.dedent(members).strip().replace("\n", "\n    "),
            decorators=decorators,
            body=body,
        )
        return user_module(source)

    return create


def gradient(cls):
    """What backward makes of a gradient of ones(2)."""
    ctx = FunctionContext((True,))
    meta = InputMetadata((2,), np.dtype(np.float64))
    ctx._inputs = ctx._outputs = (meta,)
    return run_function_backward(cls, ctx, [np.ones(2)], [True])[0].tolist()


def on_worker(cls):
    """The gradient that serialized code computes; fails if it is not serialized."""
    decision = decide(cls)
    assert decision.run_on == "worker", decision.reason
    return gradient(load(decision.code.blob))


def reason_of(attributes):
    """Why a ctx with these attributes stays; empty if it may be sent."""
    problem = look_at(attributes).problem
    return "" if problem is None else problem.text


def code_id(cls):
    decision = decide(cls)
    assert decision.run_on == "worker", decision.reason
    return decision.code.code_id


PURE = {
    "proxy of a dict of its own": (
        "value = CONFIG['k'] + CONFIG['pair'][1]",
        "import types\nCONFIG = types.MappingProxyType({'k': 1.0, 'pair': (1, 2)})",
    ),
    "random numbers with a seed": (
        "value = draw(np.random.default_rng(3))",
        "def draw(rng): return rng.random() + rng.normal()",
    ),
    "constant": ("value = SCALE", "SCALE = 3.0"),
    "array": ("value = W[1]", "W = np.arange(3.0)"),
    "array beside one that backward makes": (
        "out = np.zeros(2, dtype=float)\nfor k in range(2):\n    out[k] = W[k]\n"
        "    out[k] += 1\nout[0:1] = 3\nvalue = out",
        "W = np.arange(3.0)",
    ),
    "array by column": ("value = W.sum(0)[1]", "W = np.asfortranarray(np.ones((3, 2)))"),
    "array inside a tuple": ("value = T[0][0]", "T = (np.ones(1),)"),
    "array in a default": ("value = helper()", "def helper(w=np.ones(2)): return w[0]"),
    "frozen dataclass": (
        "value = BOX.v * BOX.table[1]",
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Box:\n    v: float\n"
        "    table: np.ndarray\nBOX = Box(2.0, np.arange(3.0))",
    ),
    "frozen dataclass with slots": (
        "value = BOX.v",
        "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass Box:\n"
        "    v: float = 2.0\nBOX = Box()",
    ),
    "named tuple": (
        "value = POINT.x",
        "import typing\nclass Point(typing.NamedTuple):\n    x: float = 2.0\nPOINT = Point()",
    ),
    "tuple": ("value = SCALES[1] + len(OTHERS)", "SCALES = (1.0, 2.0)\nOTHERS = frozenset({1})"),
    "numpy": ("value = np.linalg.norm(np.array([3.0, 4.0])) + np.pi", ""),
    "numpy function by name": ("value = dot([1.0, 2.0], [3.0, 4.0])", "from numpy import dot"),
    "ufunc by name": ("value = exp(0.5)", "from numpy import exp"),
    "numpy scalar and dtype": (
        "value = KIND.type(EPS)",
        "EPS = np.float64(2)\nKIND = np.dtype('f4')",
    ),
    "stdlib": ("value = math.sqrt(2.0)", ""),
    "local import": ("import math as m\nvalue = m.exp(1.0)", ""),
    "local submodule import": ("import os.path as p\nvalue = float(len(p.join('a', 'b')))", ""),
    "helper": (
        "value = helper(2.0)",
        "def helper(x): return inner(x) + 1\ndef inner(x): return x * x",
    ),
    "lambda": ("value = double(2.0)", "double = lambda x: x * 2"),
    "recursion": (
        "value = factorial(5.0)",
        "def factorial(n): return 1.0 if n < 2 else n * factorial(n - 1)",
    ),
    "partial": (
        "value = plus(2.0)",
        "def add(a, b): return a + b\nplus = functools.partial(add, 1)",
    ),
    "comprehension": ("value = sum(SCALE * i for i in range(3))", "SCALE = 2.0"),
    "default": ("value = helper()", "def helper(scale=2.5, *, shift=1.0): return scale + shift"),
    "enum": ("value = Kind.BIG.value", "class Kind(enum.Enum):\n    SMALL = 1.0\n    BIG = 9.0"),
    "plain class": (
        "value = Box(2.0).doubled()",
        "class Box:\n    factor = 2\n    def __init__(self, v): self.v = v\n"
        "    def doubled(self): return self.v * self.factor",
    ),
    "constant getattr": ("value = getattr(math, 'pi')", ""),
    "seeded generator": ("value = np.random.default_rng(7).standard_normal()", ""),
    "tuple of functions": (
        "value = RULES[0](3.0)",
        "def square(x): return x * x\nRULES = (square, math.sqrt)",
    ),
    "decorated helper": (
        "value = helper(2.0)",
        "def twice(f):\n    @functools.wraps(f)\n    def inner(x): return 2 * f(x)\n"
        "    return inner\n"
        "@twice\ndef helper(x): return x + 1",
    ),
    "cached helper": (
        "value = helper(2.0)",
        "@functools.lru_cache(maxsize=8, typed=True)\ndef helper(x): return inner(x) + 1\n"
        "def inner(x): return x * x",
    ),
    "cached recursion": (
        "value = fibonacci(30)",
        "@functools.cache\ndef fibonacci(n):\n"
        "    return float(n) if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    ),
    "member of a set": (
        "value = 2.0 if 'a' in {'a', 'b'} and 'c' not in NAMES and 1 in {ctx, 1} else 3.0",
        "NAMES = frozenset(['a', 'b'])",
    ),
    "sets of numbers": ("value = float(sum({1, 2, 3}) + sum(SIZES))", "SIZES = frozenset([1, 2])"),
    "sorted sets": ("value = float(len(set('ab')) + len(sorted(set('abc'))[0]))", ""),
    "no_grad helper": ("value = helper(2.0)", "@mg.no_grad()\ndef helper(x): return x + 1"),
    "mpgrad itself": ("value = 2.0 if mg.is_grad_enabled() else 3.0", ""),
    "nested function": ("def inner(): return SCALE\nvalue = inner()", "SCALE = 4.0"),
    "installed decorated function": (
        "value = logsumexp(np.ones(3))",
        "from scipy.special import logsumexp",
    ),
    "single objects": (
        "value = 2.0 if ctx is not None and KIND is np.float32 and E.A is E.A else 3.0",
        "KIND = np.float32\nclass E(enum.Enum):\n    A = 1",
    ),
    "paths that are only text": (
        "value = float(len(os.path.join('a', 'b') + os.sep))",
        "import os",
    ),
    "clock": ("value = float(time.perf_counter() > 0)", "import time"),
    "private parts of the library": ("value = add(1.0, 2.0)", "from operator import add"),
    "annotated": ("value = helper(2.0)", "def helper(x: 'mg.Tensor') -> object(): return x"),
}

IMPURE = {
    "level of a logger": (
        "value = float(LOG.getEffectiveLevel())",
        "import logging\nLOG = logging.getLogger('x')",
        "reads the global `LOG.getEffectiveLevel`, which belongs to one process",
    ),
    "handlers of a logger": (
        "value = float(len(logging.getLogger('x').handlers))",
        "import logging",
        "uses .handlers of an unknown object",
    ),
    "level of a logger that is made": (
        "value = float(logging.getLogger('x').level)",
        "import logging",
        "uses .level of a logger",
    ),
    "level of a logger that is passed on": (
        "value = (lambda log: log.level)(LOG)",
        "import logging\nLOG = logging.getLogger('x')",
        "uses .level of a logger",
    ),
    "identity by another name": ("value = ID(ctx)", "ID = id", "the global `ID`, whose state"),
    "getattr by another name": ("value = GET(np, 'p' + 'i')", "GET = getattr", "`GET`, whose"),
    "identity by a function": (
        "value = operator.is_(ctx, None)",
        "import operator",
        "`operator.is_`, whose state",
    ),
    "attribute by a function": (
        "value = operator.attrgetter('pi')(np)",
        "import operator",
        "`operator.attrgetter`, whose state",
    ),
    "NaN": ("value = NAN in (NAN,)", "NAN = float('nan')", "`NAN`, a NaN"),
    "NaN of NumPy in a tuple": ("value = T[0]", "T = (np.float64('nan'),)", "`T`, a NaN"),
    "partial with attributes": (
        "value = P.k",
        "P = functools.partial(max, 1.0)\nP.k = 2.0",
        "`P`, a partial with attributes",
    ),
    "builtins of its own": (
        "value = helper()",
        "space = {'__builtins__': {'len': lambda x: 9.0}}\n"
        "exec('def helper(): return len([])', space)\nhelper = space['helper']",
        "helper() has builtins of its own",
    ),
    "subclasses": ("value = len(Box.__subclasses__())", "class Box: pass", "`Box.__subclasses__`"),
    "dict of a module": ("value = np.__dict__['pi']", "", "uses `np.__dict__`"),
    "dict of a function": (
        "helper.__dict__['k'] = 1.0\nvalue = helper.k",
        "def helper(): pass\nhelper.k = 2.0",
        "uses `helper.__dict__`",
    ),
    "keyword defaults written": (
        "helper.__kwdefaults__['k'] += 1\nvalue = helper()",
        "def helper(*, k=1.0): return k",
        "uses `helper.__kwdefaults__`",
    ),
    "decorator that changes a function": (
        "functools.update_wrapper(helper, max)\nvalue = 1.0",
        "def helper(): pass",
        "`functools.update_wrapper`, whose state",
    ),
    "context that stays open": (
        "np.errstate(over='raise').__enter__()\nvalue = 1.0",
        "",
        "uses .__enter__ of an unknown object",
    ),
    "memory that is shared": (
        "value = np.shares_memory(W, W)",
        "W = np.ones(2)",
        "`np.shares_memory`, whose state",
    ),
    "inference mode": (
        "value = mg.is_inference_mode_enabled()",
        "",
        "inference_mode_enabled`, whose",
    ),
    "number of a class of the user": (
        "value = F + F.k",
        "class Number(np.float64): k = 2.0\nF = Number(1.0)",
        "`F`, a Number",
    ),
    "anomaly mode": (
        "value = float(mg.is_anomaly_enabled())",
        "",
        "`mg.is_anomaly_enabled`, whose state belongs to one process",
    ),
    "options of reprlib": (
        "value = float(len(reprlib.repr('x' * 99)))",
        "import reprlib",
        "`reprlib.repr`, whose state belongs to one process",
    ),
    "list": (
        "value = SCALES[0]",
        "SCALES = [1.0]",
        "`SCALES`, a list, which can change (write a tuple)",
    ),
    "dict": (
        "value = CONFIG['k']",
        "CONFIG = {'k': 1.0}",
        "`CONFIG`, a dict, which can change (write types.MappingProxyType({...}))",
    ),
    "proxy of a dict of others": (
        "value = CONFIG['k']",
        "import types\ndata = {'k': 1.0}\nCONFIG = types.MappingProxyType(data)",
        "`CONFIG`, a mappingproxy",
    ),
    "proxy of lists": (
        "value = CONFIG['k'][0]",
        "import types\nCONFIG = types.MappingProxyType({'k': [1.0]})",
        "(inside a mappingproxy), a list",
    ),
    "identity of a proxy": (
        "value = float(ctx.config is CONFIG)",
        "import types\nCONFIG = types.MappingProxyType({'k': 1.0})",
        "compares `CONFIG` by `is`",
    ),
    "sparse matrix": (
        "value = K.sum()",
        "import scipy.sparse\nK = scipy.sparse.eye_array(3).tocsr()",
        "a csr_array, which can change (set it on ctx)",
    ),
    "large array": (
        "value = W[0]",
        "W = np.ones(1 << 18)",
        "`W`, a ndarray, which can change (arrays of up to 1 MiB are compared: set it on ctx)",
    ),
    "array of objects": ("value = W[1]", "W = np.array([None, 1.0])", "`W`, a ndarray"),
    "array with gaps": ("value = W[0]", "W = np.ones(4)[::2]", "`W`, a ndarray"),
    "array that is written": (
        "W[0] += 1\nvalue = W[0]",
        "W = np.ones(1)",
        "`W`, an array, which Custom.backward() may change",
    ),
    "array that another name stands for": (
        "own = np.zeros(1)\nown = W\nown[0] += 1\nvalue = W[0]",
        "W = np.ones(1)",
        "`W`, an array, which Custom.backward() may change",
    ),
    "array that a helper fills": (
        "fill(W)\nvalue = W[0]",
        "W = np.ones(1)\ndef fill(w): np.add(w, 1, out=w)",
        "an array, which fill() may change",
    ),
    "array that is sorted": (
        "W.sort()\nvalue = W[0]",
        "W = np.array([2.0, 1.0])",
        "which changes it",
    ),
    "cached function of an array": (
        "value = total()",
        "W = np.ones(2)\n@functools.lru_cache\ndef total(): return W.sum()",
        "total() is cached and reads `W`",
    ),
    "dataclass that is not frozen": (
        "value = BOX.v",
        "import dataclasses\n@dataclasses.dataclass\nclass Box:\n    v: float = 1.0\nBOX = Box()",
        "`BOX`, a Box, which can change (write @dataclass(frozen=True))",
    ),
    "frozen dataclass with a list": (
        "value = BOX.v[0]",
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Box:\n    v: list\n"
        "BOX = Box([1.0])",
        "inside a Box",
    ),
    "tuple with a list": ("value = T[0][0]", "T = ([1.0],)", "inside a tuple"),
    "object": ("value = BOX.v", "class Box: v = 1.0\nBOX = Box()", "`BOX`, a Box"),
    "generator object": ("value = RNG.normal()", "RNG = np.random.default_rng(0)", "a Generator"),
    "method of an object": ("value = push()", "push = [1.0].pop", "`push`, a"),
    "nested helper": (
        "value = helper()",
        "TABLE = {1: 2.0}\ndef helper(): return inner()\ndef inner(): return TABLE[1]",
        "inner() (line",
    ),
    "reads in a comprehension": ("value = sum(W[i] for i in range(1))", "W = [1.0]", "`W`, a list"),
    "writes a global": (
        "global calls\ncalls += 1\nvalue = 1.0",
        "calls = 0",
        "writes `calls`",
    ),
    "writes a class attribute": ("Custom.calls += 1\nvalue = 1.0", "", "writes `Custom.calls`"),
    "assigns a class attribute": ("Custom.calls = 1\nvalue = 1.0", "", "writes `Custom.calls`"),
    "writes through type()": (
        "type(ctx).calls = 1\nvalue = 1.0",
        "",
        "sets .calls of an object that may be shared",
    ),
    "writes through a class method": (
        "Box.bump()\nvalue = 1.0",
        "class Box:\n    n = 0\n    @classmethod\n    def bump(cls): cls.n += 1",
        "sets .n of an object that may be shared",
    ),
    "writes through a parameter": (
        "bump(Custom)\nvalue = 1.0",
        "def bump(target): target.n = 1",
        "sets .n of an object that may be shared",
    ),
    "mutable function attribute": (
        "value = first(helper)",
        "def first(f): return f.table[0]\ndef helper(): pass\nhelper.table = [1.0]",
        "helper() has the attribute `table`, a list",
    ),
    "enum member with state": (
        "value = Kind.BIG.weight",
        "class Kind(enum.Enum):\n    BIG = 1\nKind.BIG.weight = 2.0",
        "`BIG`, a Kind",
    ),
    "module that computes its names": (
        "value = lazy.SCALE",
        "import types\nclass Lazy(types.ModuleType):\n    SCALE = 1.0\nlazy = Lazy('lazy')",
        "may compute",
    ),
    "mpgrad dropout": ("value = mg.nn.functional.dropout(grad, 0.5)", "", "one process"),
    "mutable default": ("value = helper()", "def helper(c=[1.0]): return c[0]", "default argument"),
    "mutable closure": (
        "value = helper()",
        "def make():\n    box = [1.0]\n    def f(): return box[0]\n    return f\nhelper = make()",
        "closure variable `box`",
    ),
    "cached helper that reads a constant": (
        "value = helper(2.0)",
        "SCALE = 3.0\n@functools.lru_cache\ndef helper(x): return inner(x)\n"
        "def inner(x): return x * SCALE",
        "helper() is cached and reads `SCALE`",
    ),
    "cached closure": (
        "value = helper(2.0)",
        "def make(n):\n    @functools.cache\n    def f(x): return x * n\n    return f\n"
        "helper = make(3)",
        "is cached and reads a variable of its closure",
    ),
    "set of strings": (
        "value = 0.0\nfor name in {'a', 'b'}: value = 2 * value + len(name)",
        "",
        "makes a set, whose order of strings",
    ),
    "set comprehension": ("value = len([*{str(n) for n in range(3)}])", "", "makes a set"),
    "set literal": ("names = {str(ctx), 'a'}\nvalue = len([*names])", "", "makes a set"),
    "set of what comes": ("value = len([*set('ab')])", "", "makes a set, whose order"),
    "global set of strings": (
        "value = len([*NAMES])",
        "NAMES = (1, frozenset(['a', 'b']))",
        "`NAMES`, whose order differs in each process",
    ),
    "rebound closure": (
        "value = helper()",
        "def make():\n    n = 0.0\n    def f():\n        nonlocal n\n        n += 1\n"
        "        return n\n"
        "    return f\nhelper = make()",
        "writes `n`",
    ),
    "eval": ("value = eval('1.0')", "", "eval()"),
    "globals": ("value = globals()['SCALE']", "SCALE = 1.0", "globals()"),
    "computed getattr": ("value = getattr(math, 'p' + str('i'))", "", "computed at run time"),
    "getattr with a name that is added up": (
        "value = getattr(math, 'p', 1.0 if ctx else 2.0)",
        "",
        "computed at run time",
    ),
    "numpy random": ("value = np.random.rand()", "", "belongs to one process"),
    "numpy random by name": ("value = rand()", "from numpy.random import rand", "belongs to"),
    "numpy random module": ("value = npr.rand()", "from numpy import random as npr", "one process"),
    "numpy random in an alias": ("r = np.random\nvalue = r.rand()", "", "belongs to one process"),
    "numpy passed on": (
        "value = helper(np)",
        "def helper(xp): return xp.random.rand()",
        "perhaps `numpy.random`",
    ),
    "random": ("value = random.random()", "import random", "belongs to one process"),
    "random by name": ("value = uniform(0, 1)", "from random import uniform", "which draws"),
    "local random": ("import random\nvalue = random.random()", "", "belongs to one process"),
    "local from import": ("from numpy.random import rand\nvalue = rand()", "", "one process"),
    "identity of a text": ("value = float(ctx.k is KIND)", "KIND = 'a kind'", "compares `KIND` by"),
    "identity on the left": ("value = float(BIG is ctx.k)", "BIG = 1e9", "compares `BIG` by `is`"),
    "identity of nan": ("value = float(ctx.k is np.nan)", "", "compares `np.nan` by `is`"),
    "cache's own numbers": (
        "value = helper(1) + helper.cache_info().hits",
        "@functools.lru_cache\ndef helper(x): return x",
        "each process has a cache of its own",
    ),
    "open": ("with open('f') as f: value = len(f.read())", "", "calls open()"),
    "file of numpy": ("value = np.load('f.npy')", "", "`np.load`, whose state"),
    "file of numpy by name": ("value = load('f.npy')", "from numpy import load", "one process"),
    "class by name": ("value = len(Path('f').name)", "from pathlib import Path", "one process"),
    "thread by name": (
        "Thread().start()\nvalue = 1",
        "from threading import Thread",
        "one process",
    ),
    "signals": ("value = float(signal.alarm(0))", "import signal", "belongs to one process"),
    "limits by name": ("value = getrlimit(0)[0]", "from resource import getrlimit", "one process"),
    "descriptors": ("value = os.dup2(1, 9)", "import os", "`os.dup2`, whose state"),
    "zone": ("value = time.localtime(0).tm_hour", "import time", "`time.localtime`, whose"),
    "a module of process state as a value": (
        "value = helper(os)",
        "import os\ndef helper(m): return len(m.getcwd())",
        "whose state belongs to one process",
    ),
    "SciPy's generator": (
        "value = svds(np.eye(3))[1][0]",
        "from scipy.sparse.linalg import svds",
        "belongs to one process",
    ),
    "decimal's context": (
        "decimal.setcontext(decimal.Context(prec=3))\nvalue = 1.0",
        "import decimal",
        "`decimal.setcontext`, whose state",
    ),
    "environment": ("value = float(os.environ.get('S', '1'))", "import os", "one process"),
    "getenv by name": ("value = float(getenv('S', '1'))", "from os import getenv", "one process"),
    "mpgrad random": ("value = mg.rand(1).item()", "", "belongs to one process"),
    "hash": ("value = float(hash('a'))", "", "hash()"),
    "annotations": ("value = len(helper.__annotations__)", "def helper(x: int): pass", "otherwise"),
    "type hints": ("value = len(typing.get_type_hints(print))", "import typing", "one process"),
    "hash of a text": ("value = 'a'.__hash__()", "", "uses .__hash__ of an unknown object"),
    "attribute by a method": ("ctx.__setattr__('n', 1)\nvalue = 1", "", "uses .__setattr__ of"),
    "memory of an array": ("value = W.flags.owndata", "W = np.ones(2)", "may see otherwise"),
    "size of an object": ("value = sys.getsizeof(ctx)", "import sys", "belongs to one process"),
    "a stream's properties": ("value = len(sys.stdout.encoding)", "import sys", "one process"),
    "drawn sample": (
        "value = statistics.NormalDist().samples(1)[0]",
        "import statistics",
        ".samples of an unknown object",
    ),
    "drawn initial values": ("value = mg.nn.init.normal_(grad)", "", "belongs to one process"),
    "setting of products": ("value = len(mg.get_float32_matmul_precision())", "", "one process"),
    "keys of two dictionaries": (
        "keys = {'a': 1, 'b': 2}.keys()\nvalue = len([*(keys & {'a': 1}.keys())])",
        "",
        "makes a set, whose order",
    ),
    "set of a tuple": ("value = len([*{*NAMES}])", "NAMES = ('a', 'b')", "makes a set, whose"),
    "union": ("value = len([*ONE.union('ab')])", "ONE = frozenset([1])", "makes a set, whose"),
    "dataclass that says how it is pickled": (
        "value = BOX.v",
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Box:\n    v: float = 1.0\n"
        "    def __getstate__(self): return {'v': 2.0}\nBOX = Box()",
        "`BOX`, a Box",
    ),
    "identity of an array": ("value = ctx.w is W", "W = np.ones(1)", "compares `W` by `is`"),
    "hook of an abstract class": (
        "value = isinstance(1.0, Kind)",
        "import abc\nclass Kind(abc.ABC):\n    @classmethod\n"
        "    def __subclasshook__(cls, other): return True",
        "Kind.__subclasshook__() is asked once in each process",
    ),
    "user class of an abstract class": (
        "value = isinstance(1.0, Sized)",
        "from collections.abc import Sized\nclass Mine: pass\nSized.register(Mine)",
        "Sized.register(Mine) was called here",
    ),
    "missing closure value": (
        "value = helper()",
        "def make():\n    def f(): return late\n    if False: late = 1.0\n    return f\n"
        "helper = make()",
        "without a value",
    ),
}


class TestPure:
    @pytest.mark.parametrize("case", PURE)
    def test_runs_on_a_worker_with_the_same_result(self, custom, case):
        module = custom(*PURE[case])
        assert on_worker(module.Custom) == gradient(module.Custom)
        assert decide(module.Custom).reason == ""

    def test_once_differentiable(self, custom):
        module = custom("value = SCALE", "SCALE = 5.0", decorators="@once_differentiable")
        assert on_worker(module.Custom) == [5.0, 5.0]
        before = code_id(module.Custom)
        module.SCALE = 6.0
        assert code_id(module.Custom) != before
        assert on_worker(module.Custom) == [6.0, 6.0]

    def test_forward_is_not_looked_at_and_not_sent(self, user_module):
        module = user_module("""
            import threading
            MESH = {"lock": threading.Lock()}
            class Custom(Function):
                @staticmethod
                def forward(ctx, x):
                    return x._array * len(MESH)
                @staticmethod
                def backward(ctx, grad):
                    return grad._array * 2
        """)
        assert on_worker(module.Custom) == [2.0, 2.0]
        serialized = load(decide(module.Custom).code.blob)
        with pytest.raises(RuntimeError, match="was called from backward on a worker"):
            serialized.forward(None, None)

    def test_forward_counts_where_backward_names_it(self, custom):
        assert on_worker(custom("value = Custom.forward(None, grad)[0]").Custom) == [1.0, 1.0]
        module = custom(
            "value = Other.forward(None, grad)",
            "import os\nclass Other(Function):\n"
            "    @staticmethod\n    def forward(ctx, x): return os.getpid()",
        )
        assert "`os.getpid`" in decide(module.Custom).reason

    def test_forward_may_set_its_ctx_where_backward_reaches_it_by_apply(self, custom):
        names = """
            class Inner(Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.factor = 2.0
                    return x._array

                @staticmethod
                def backward(ctx, grad):
                    return grad._array * ctx.factor

            class Model:
                scale = 3.0

                def __call__(self, x):
                    return Inner.apply(x)
        """
        assert on_worker(custom("value = Model.scale", names).Custom) == [3.0, 3.0]

    def test_installed_classes_travel_by_path(self):
        decision = decide(Function)
        assert decision.run_on == "worker"
        assert load(decision.code.blob) is Function


class TestRunOnWorker:
    def test_what_can_change_unseen_is_packed_again(self, custom):
        module = custom("value = W[0]", "W = np.ones(1)", 'run_on = "worker"')
        before = code_id(module.Custom)
        assert code_id(module.Custom) == before
        module.W[0] = 2.0
        assert code_id(module.Custom) != before
        assert on_worker(module.Custom) == [2.0, 2.0]

    def test_what_cannot_is_packed_once(self, custom, monkeypatch):
        module = custom("value = SCALE", "SCALE = 2.0", 'run_on = "worker"')
        before = code_id(module.Custom)
        monkeypatch.setattr(decisions, "dump", None)
        assert code_id(module.Custom) == before


class TestArrays:
    """Arrays of the surroundings, compared before each backward."""

    def test_a_change_in_place_is_seen(self, custom):
        module = custom("value = W[0]", "W = np.ones(3)")
        before = code_id(module.Custom)
        assert code_id(module.Custom) == before
        module.W[0] = 2.0
        assert on_worker(module.Custom) == gradient(module.Custom) == [2.0, 2.0]
        assert code_id(module.Custom) != before
        module.W = module.W.astype(np.float32)  # the same values
        assert code_id(module.Custom) != before

    def test_the_sign_of_zero_and_nan_are_seen(self, custom):
        module = custom("value = W[0]", "W = np.array([0.0, np.nan])")
        before = code_id(module.Custom)
        assert code_id(module.Custom) == before
        module.W[0] = -0.0
        assert code_id(module.Custom) != before

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_a_worker_has_the_layout(self, custom, order):
        module = custom(
            f"assert W.flags.{order.lower()}_contiguous and W.flags['WRITEABLE']\nvalue = W[1, 0]",
            f"W = np.array([[1.0, 2.0], [3.0, 4.0]], order={order!r})",
        )
        assert on_worker(module.Custom) == [3.0, 3.0]

    @pytest.mark.parametrize(
        "made",
        [
            "np.arange(24.0).reshape(4, 6)[::2, 1::2]",
            "np.arange(24.0).reshape(4, 6)[::-1, ::-2]",
            "np.broadcast_to(np.arange(3.0), (2, 3))",
            "np.arange(24, dtype='u1')[3:19].view('f8').reshape(1, 2)",
            "np.empty((0, 3))",
        ],
    )
    def test_a_copy_has_the_strides_the_flags_and_the_elements(self, custom, made):
        module = custom("value = W.sum()", f"W = {made}")
        loaded = loading.load_all(decide(module.Custom).code.blob)
        array, copy = module.W, loaded.contents[0].value
        assert (copy.strides, copy.shape, copy.dtype) == (array.strides, array.shape, array.dtype)
        assert copy.flags.writeable == array.flags.writeable
        assert copy.tobytes() == array.tobytes()
        assert not np.shares_memory(copy, array)


_FROZEN = (
    "import dataclasses\n@dataclasses.dataclass(frozen=True{})\nclass Box:\n    v: float = 2.0\n"
)

#: What is read, from what, and a change that leaves all names as they are.
UNNAMED_CHANGES = {
    "field": (
        "value = BOX.v",
        f"{_FROZEN.format('')}BOX = Box()",
        lambda user: object.__setattr__(user.BOX, "v", 3.0),
    ),
    "slot": (
        "value = BOX.v",
        f"{_FROZEN.format(', slots=True')}BOX = Box()",
        lambda user: object.__setattr__(user.BOX, "v", 3.0),
    ),
    "default of a named tuple": (
        "value = Point().x",
        "import collections\nPoint = collections.namedtuple('Point', 'x', defaults=(2.0,))",
        lambda user: setattr(user.Point.__new__, "__defaults__", (3.0,)),
    ),
    "value of an enum member": (
        "value = Kind.A.value",
        "class Kind(enum.Enum):\n    A = 2.0",
        lambda user: setattr(user.Kind.A, "_value_", 3.0),
    ),
    "what makes enum members": (
        "value = Kind(9.0).value",
        "class Kind(enum.Enum):\n    A, B = 2.0, 3.0\n"
        "    @classmethod\n    def _missing_(cls, value): return cls(NEXT)\nNEXT = 2.0",
        lambda user: setattr(user, "NEXT", 3.0),
    ),
    "method of an enum": (
        "value = float(Kind.A)",
        "class Kind(enum.Enum):\n    A = 2.0\n    def __float__(self): return K\nK = 2.0",
        lambda user: setattr(user, "K", 3.0),
    ),
    "function of a partial": (
        "value = P()",
        "P = functools.partial(float, 2)",
        lambda user: user.P.__setstate__((float, (3,), {}, {})),
    ),
    "registered class": (
        "value = 2.0 + isinstance(1.0, Kind)",
        "import abc\nclass Kind(abc.ABC): pass",
        lambda user: user.Kind.register(float),
    ),
    "name of a function": (
        "value = float(len(helper.__name__))",
        "def helper(): pass",
        lambda user: setattr(user.helper, "__name__", "no"),
    ),
    "words of a class": (
        "value = float(len(Box.__doc__))",
        "class Box:\n    'words'",
        lambda user: setattr(user.Box, "__doc__", "no"),
    ),
    "shape of an array": (
        "value = float(W.ndim)",
        "W = np.ones(4)",
        lambda user: user.W.resize((2, 2), refcheck=False),
    ),
}


@pytest.mark.parametrize("case", UNNAMED_CHANGES)
def test_a_change_without_a_name_is_seen(custom, case):
    body, names, change = UNNAMED_CHANGES[case]
    module = custom(body, names)
    before = on_worker(module.Custom)
    change(module)
    assert on_worker(module.Custom) == gradient(module.Custom) != before


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("value = (lambda m: m.cosh(1.0))(np)", ""),
        ("value = helper()", "def helper(m=np): return m.cosh(1.0)"),
        ("for m in (np,): value = m.cosh(1.0)", ""),
        ("value = MODULES[0].cosh(1.0)", "MODULES = (np,)"),
    ],
)
def test_what_is_replaced_in_a_module_that_is_passed_on(custom, monkeypatch, body, names):
    cls = custom(body, names).Custom
    assert decide(cls).run_on == "worker"
    monkeypatch.setattr(np, "cosh", lambda x: x)
    assert "perhaps `numpy.cosh`, which was replaced here" in decide(cls).reason


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "a NaN"),
        ((1.0, float("nan")), "a NaN"),
        ([float("nan")], "a NaN"),
        (np.arange(6.0).reshape(2, 3)[:, ::2], ""),
        (mg.zeros(4)[::2], ""),
        (np.arange(6.0).reshape(2, 3).T, ""),
    ],
)
def test_what_a_copy_on_ctx_would_not_be(value, why):
    found = reason_of({"held": value})
    assert why in found
    assert bool(found) == bool(why)


def test_scalars_are_sent_unseen_but_for_a_nan():
    plain = {"a": 1, "b": 2.5, "c": "text", "d": b"bytes", "e": None, "f": True}
    assert are_scalars(plain)
    assert not are_scalars({**plain, "g": float("nan")})
    assert not are_scalars({**plain, "g": np.float64(1.0)})


@pytest.mark.parametrize(
    ("owner", "name", "body", "message"),
    [
        (builtins, "abs", "value = abs(-2.0)", "the builtin `abs`, which was put there"),
        (builtins, "added", "value = added(2.0)", "the builtin `added`, which was put there"),
        (mg.Tensor, "sinh", "value = grad.sinh().numpy()", "Tensor.sinh was replaced here"),
        (mg.Tensor, "added", "value = float(hasattr(grad, 'added'))", "Tensor.added was replaced"),
    ],
)
def test_what_user_code_puts_in_place_of_ours(custom, monkeypatch, owner, name, body, message):
    cls = custom(body).Custom
    assert decide(cls).run_on == "worker"
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda x: x, raising=False)
        assert message in decide(cls).reason
    assert decide(cls).run_on == "worker"


#: What travels by value and is compared, also where the code changes it.
TRAVELLING = {
    "array of objects",
    "array that a helper fills",
    "array that another name stands for",
    "array that is sorted",
    "array that is written",
    "array with gaps",
    "dataclass that is not frozen",
    "dict",
    "frozen dataclass with a list",
    "large array",
    "list",
    "mutable closure",
    "mutable default",
    "mutable function attribute",
    "nested helper",
    "object",
    "proxy of a dict of others",
    "proxy of lists",
    "reads in a comprehension",
    "sparse matrix",
    "tuple with a list",
    "writes through a class method",
    "writes through a parameter",
}


#: Those of them that change something.
CHANGING = {
    "array that a helper fills",
    "array that another name stands for",
    "array that is sorted",
    "array that is written",
    "writes through a class method",
    "writes through a parameter",
}


class TestImpure:
    @pytest.mark.parametrize("case", sorted({*IMPURE} - TRAVELLING))
    def test_runs_in_the_client(self, custom, case):
        body, names, message = IMPURE[case]
        decision = decide(custom(body, names).Custom)
        assert decision.run_on == "client"
        assert decision.code is None
        assert message in decision.reason
        assert 'run_on = "client"' in decision.reason
        assert 'run_on = "worker"' not in decision.reason

    @pytest.mark.parametrize("case", sorted(TRAVELLING))
    def test_travels_by_value(self, custom, case):
        body, names, _ = IMPURE[case]
        cls = custom(body, names).Custom
        loaded = loading.load_all(decide(cls).code.blob)
        there = gradient(loaded.function)
        changes = case in CHANGING
        assert bool(loaded.what_changed()) == changes
        assert gradient(cls) == there
        assert bool(decisions.what_changed(cls)) == changes

    def test_compiled_code_of_the_user(self, user_module, custom):
        compiled = user_module("def f(): return 1.0")
        compiled.__file__ = f"{compiled.__name__}{EXTENSION_SUFFIXES[0]}"
        decision = decide(custom("value = m.f()", f"import {compiled.__name__} as m").Custom)
        assert f"it uses {compiled.__name__}, compiled code" in decision.reason

    def test_mutable_class_attribute(self, custom):
        cls = custom("value = Custom.cache[0]", members="cache = [1.0]").Custom
        assert on_worker(cls) == [1.0, 1.0]
        cls.cache[0] = 2.0
        assert on_worker(cls) == [2.0, 2.0]

    def test_a_class_inside_a_function_is_looked_through_with_its_variables(self):
        factor, factors = 2.0, [2.0]

        class Number(Function):
            backward = staticmethod(lambda ctx, grad: grad * factor)

        class List(Function):
            backward = staticmethod(lambda ctx, grad: grad * factors[0])

        before = decide(Number)
        assert before.run_on == "worker"
        factor = 3.0
        assert decide(Number).code != before.code
        before = decide(List)
        assert before.run_on == "worker"
        factors[0] = 3.0
        assert decide(List).code != before.code

    def test_a_variable_of_a_function_that_backward_sets(self):
        calls = 0

        class Counting(Function):
            @staticmethod
            def backward(ctx, grad):
                nonlocal calls
                calls += 1
                return grad

        assert decide(Counting).run_on == "client"

    def test_module_used_as_a_value(self, user_module, custom):
        settings = user_module("SCALE = 1.0").__name__
        for body in ("value = vars(m)['SCALE']", "value = helper(m)", "x = [m]\nvalue = 1.0"):
            module = custom(body, f"import {settings} as m\ndef helper(m): return m.SCALE")
            assert decide(module.Custom).run_on == "client"

    def test_local_import_of_user_code(self, user_module, custom):
        settings = user_module("SCALE = 1.0").__name__
        module = custom(f"import {settings} as m\nvalue = m.SCALE")
        assert f"imports {settings}" in decide(module.Custom).reason

    def test_a_global_that_cannot_be_looked_at(self, custom):
        class_ = "class Proxy:\n    @property\n    def __class__(self): raise KeyError('unbound')\n"
        decision = decide(custom("value = P.v", class_ + "P = Proxy()").Custom)
        assert decision.run_on == "client"
        assert "cannot be looked through (KeyError: 'unbound')" in decision.reason

    def test_it_may_become_pure(self, custom):
        module = custom("value = SCALES[0]", "SCALES = [1.0]\ndef f(): yield 1.0\nSCALES = f()")
        assert decide(module.Custom).run_on == "client"
        module.SCALES = (2.0,)
        assert on_worker(module.Custom) == [2.0, 2.0]


class TestRunOn:
    def test_client(self, custom):
        decision = decide(custom("value = 1.0", members='run_on = "client"').Custom)
        assert (decision.run_on, decision.code) == ("client", None)

    def test_worker_promises(self, custom):
        module = custom("value = SCALES[0]", "SCALES = [3.0]", 'run_on = "worker"')
        assert on_worker(module.Custom) == [3.0, 3.0]
        module.SCALES = [4.0]
        assert on_worker(module.Custom) == [4.0, 4.0]

    def test_worker_with_a_module_as_a_value(self, user_module, custom):
        settings = user_module("SCALE = 2.0").__name__
        module = custom(
            "value = helper(m)",
            f"import {settings} as m\ndef helper(m): return m.SCALE",
            'run_on = "worker"',
        )
        sys.modules.pop(settings)
        assert on_worker(module.Custom) == [2.0, 2.0]

    def test_worker_but_not_picklable(self, custom):
        module = custom(
            "value = 1.0 if LOCK else 2.0",
            "import threading\nLOCK = threading.Lock()",
            'run_on = "worker"',
        )
        with pytest.raises(TypeError, match=r'Custom has run_on = "worker".*pickle.*Remove'):
            decide(module.Custom)

    def test_local_class_that_promises(self):
        factor = [2.0]

        class Local(Function):
            run_on = "worker"

            @staticmethod
            def backward(ctx, grad):
                return grad._array * factor[0]

        assert on_worker(Local) == [2.0, 2.0]

    def test_anything_else(self, custom):
        with pytest.raises(ValueError, match=r"Custom.run_on is 'gpu'"):
            decide(custom("value = 1.0", members='run_on = "gpu"').Custom)

    def test_changing_it_later(self, custom):
        module = custom("value = SCALES[0] + 0 * id(SCALES)", "SCALES = [3.0]")
        assert decide(module.Custom).run_on == "client"
        module.Custom.run_on = "worker"
        assert on_worker(module.Custom) == [3.0, 3.0]


class TestChanges:
    """Whatever backward reads changes: the next decision ships it, and old code stays as it was."""

    def check(self, cls, change, after):
        before = decide(cls)
        old = load(before.code.blob)
        old_gradient = gradient(old)
        assert decide(cls) is before
        change()
        assert code_id(cls) != before.code.code_id
        assert gradient(cls) == on_worker(cls) == after
        assert gradient(old) == old_gradient

    def test_global_constant_and_back(self, custom):
        module = custom("value = SCALE", "SCALE = 1.0")
        first = code_id(module.Custom)
        self.check(module.Custom, lambda: setattr(module, "SCALE", 2.0), [2.0, 2.0])
        module.SCALE = 1.0
        assert code_id(module.Custom) == first

    @pytest.mark.parametrize(
        ("before", "after"), [(0.0, -0.0), (1, True), (1.0, 1), ((0.0,), (-0.0,)), (1.0, None)]
    )
    def test_equal_but_not_the_same(self, custom, before, after):
        module = custom("value = 1.0 if SCALE else 2.0", "SCALE = None")
        module.SCALE = before
        first = code_id(module.Custom)
        module.SCALE = after
        assert code_id(module.Custom) != first

    @pytest.mark.parametrize(
        "value", ["float('nan')", "10**30", "(1.5, 'a b')", "np.float32(2)", "mg.zeros(2).shape"]
    )
    def test_the_same_in_a_new_object(self, custom, value):
        module = custom("value = 1.0 if SCALE else 2.0", f"SCALE = {value}")
        before = decide(module.Custom)
        module.SCALE = eval(value, {**vars(module)})
        assert decide(module.Custom) is before

    def test_module_constant(self, user_module, custom):
        settings = user_module("SCALE = 1.0\nUNUSED = [1]")
        for body in ("value = m.SCALE", "c = m\nvalue = c.SCALE", "value = (c := m).SCALE"):
            settings.SCALE = 1.0
            module = custom(body, f"import {settings.__name__} as m")
            self.check(module.Custom, lambda: setattr(settings, "SCALE", 2.0), [2.0, 2.0])
        settings.SCALE = [3.0]
        self.check(module.Custom, lambda: settings.SCALE.__setitem__(0, 2.0), [2.0, 2.0])

    def test_module_inside_a_package(self, user_module, custom):
        inner = user_module("SCALE = 1.0")
        outer = user_module(f"import {inner.__name__} as inner")
        module = custom("value = o.inner.SCALE", f"import {outer.__name__} as o")
        self.check(module.Custom, lambda: setattr(inner, "SCALE", 2.0), [2.0, 2.0])

    def test_reloaded_module(self, user_module, custom, tmp_path):
        tools = user_module("def helper(): return 1.0")
        module = custom("value = t.helper()", f"import {tools.__name__} as t")

        def edit():
            (tmp_path / f"{tools.__name__}.py").write_text("def helper():\n    return 22.0\n")
            importlib.reload(tools)

        self.check(module.Custom, edit, [22.0, 22.0])

    def test_stale_function_of_a_reloaded_module(self, user_module, custom, tmp_path):
        """A worker must get the helper that the class holds, not the file's new one."""
        tools = user_module("def helper(): return 1.0")
        module = custom("value = helper()", f"from {tools.__name__} import helper")
        (tmp_path / f"{tools.__name__}.py").write_text("def helper():\n    return 22.0\n")
        importlib.reload(tools)
        assert gradient(module.Custom) == on_worker(module.Custom) == [1.0, 1.0]

    def test_monkeypatched_helper(self, custom):
        module = custom("value = helper()", "def helper(): return 1.0")
        self.check(module.Custom, lambda: setattr(module, "helper", lambda: 2.0), [2.0, 2.0])

    def test_helper_code_and_defaults(self, custom):
        source = "def helper(a=1.0, *, b=0.0): return a + b"
        module = custom("value = helper()", source)
        self.check(
            module.Custom, lambda: setattr(module.helper, "__defaults__", (2.0,)), [2.0, 2.0]
        )
        module.helper.__kwdefaults__["b"] = 5.0
        assert on_worker(module.Custom) == [7.0, 7.0]
        module.helper.__code__ = (lambda a=1.0, *, b=0.0: a * b).__code__
        assert on_worker(module.Custom) == [10.0, 10.0]

    def test_global_of_a_nested_helper(self, user_module, custom):
        tools = user_module("SCALE = 1.0\ndef helper(): return inner()\ndef inner(): return SCALE")
        module = custom("value = helper()", f"from {tools.__name__} import helper")
        self.check(module.Custom, lambda: setattr(tools, "SCALE", 2.0), [2.0, 2.0])

    def test_class_attribute(self, custom):
        module = custom("value = Custom.scale", members="scale = 1.0")
        self.check(module.Custom, lambda: setattr(module.Custom, "scale", 2.0), [2.0, 2.0])

    def test_backward_itself(self, custom):
        module = custom("value = 1.0")
        new = staticmethod(lambda ctx, grad: grad._array * 3)
        self.check(module.Custom, lambda: setattr(module.Custom, "backward", new), [3.0, 3.0])

    def test_base_class(self, user_module):
        module = user_module("""
            class Base(Function):
                scale = 1.0
                @staticmethod
                def rule(grad): return grad * 1.0
            class Custom(Base):
                @staticmethod
                def backward(ctx, grad): return Custom.rule(grad._array) * Custom.scale
        """)
        rule = staticmethod(lambda grad: grad * 5.0)
        self.check(module.Custom, lambda: setattr(module.Base, "rule", rule), [5.0, 5.0])
        self.check(module.Custom, lambda: setattr(module.Base, "scale", 2.0), [10.0, 10.0])
        self.check(module.Custom, lambda: setattr(module.Custom, "scale", 4.0), [20.0, 20.0])

    def test_forward_of_a_mixin_is_not_needed(self, user_module):
        """What only forward does says nothing about backward, whoever defines it."""
        module = user_module("""
            class Mixin:
                @staticmethod
                def forward(ctx, x):
                    ctx.settings.count += 1
                    return x._array * 1.0
            class Custom(Mixin, Function):
                @staticmethod
                def backward(ctx, grad): return grad._array * 1.0
        """)
        assert decide(module.Custom).run_on == "worker"

    def test_closure_value(self, custom):
        module = custom(
            "value = helper()",
            "def make(scale):\n    def f(): return scale\n    return f\nhelper = make(1.0)",
        )
        cell = module.helper.__closure__[0]
        self.check(module.Custom, lambda: setattr(cell, "cell_contents", 2.0), [2.0, 2.0])

    def test_builtin_shadowed_later(self, custom):
        module = custom("value = abs(-1.0)")
        self.check(module.Custom, lambda: setattr(module, "abs", lambda x: 2.0), [2.0, 2.0])

    @pytest.mark.parametrize("body", ["value = helper.scale", "value = read(helper)"])
    def test_function_attribute(self, custom, body):
        source = "def read(f): return f.scale\ndef helper(): pass\nhelper.scale = 1.0"
        module = custom(body, source)
        self.check(module.Custom, lambda: setattr(module.helper, "scale", 2.0), [2.0, 2.0])

    def test_redefined_class(self, custom):
        """A notebook cell that is run again."""
        module = custom("value = 1.0")
        first = code_id(module.Custom)
        source = "class Custom(Function):\n  @staticmethod\n  def backward(c, g): return g._array*2"
        exec(source, vars(module))
        assert code_id(module.Custom) != first
        assert on_worker(module.Custom) == [2.0, 2.0]


class TestTravelling:
    def test_no_registration_is_left_behind(self, custom):
        before = cloudpickle.list_registry_pickle_by_value()
        decide(custom("value = helper()", "def helper(): return 1.0").Custom)
        assert cloudpickle.list_registry_pickle_by_value() == before

    def test_a_registration_of_the_user_stays(self, custom):
        module = custom("value = 1.0")
        cloudpickle.register_pickle_by_value(module)
        try:
            decide(module.Custom)
            assert module.__name__ in cloudpickle.list_registry_pickle_by_value()
        finally:
            cloudpickle.unregister_pickle_by_value(module)

    def test_two_versions_side_by_side(self, custom):
        """cloudpickle's class tracking would change the first one in place."""
        module = custom("value = Custom.scale", members="scale = 1.0")
        first = load(decide(module.Custom).code.blob)
        module.Custom.scale = 2.0
        second = load(decide(module.Custom).code.blob)
        assert first is not second
        assert (gradient(first), gradient(second)) == ([1.0, 1.0], [2.0, 2.0])

    def test_load_refuses_other_things(self):
        with pytest.raises(TypeError, match="not a Function class"):
            load(cloudpickle.dumps(3))

    def test_main_class_in_another_process_without_the_users_files(self, tmp_path):
        tools = tmp_path / "my_tools.py"
        tools.write_text(
            "import functools\nSCALE = 3.0\ndef helper(x):\n    return x * SCALE\n"
            "@functools.cache\ndef cached(x): return x * 10.0\n"
        )
        script = tmp_path / "script.py"
        script.write_text(
            HEADER
            + textwrap.dedent("""
            import sys
            import my_tools
            from my_tools import cached, helper
            from mpgrad.calls.custom_functions.run_on import decide
            SHIFT = 1.0
            @functools.cache
            def own(x): return x + cached(x)
            class Custom(Function):
                @staticmethod
                def forward(ctx, x): return x._array
                @staticmethod
                def backward(ctx, grad):
                    return helper(grad._array) + SHIFT + my_tools.SCALE + own(2.0)
            my_tools.SCALE = 4.0
            sys.stdout.buffer.write(decide(Custom).code.blob)
        """)
        )
        blob = run_python([str(script)], tmp_path)
        tools.unlink()
        worker = (
            "import sys, numpy as np\n"
            "from mpgrad.calls.custom_functions.loading import load\n"
            "from mpgrad.recording.tensors.tensor import Tensor\n"
            "cls = load(sys.stdin.buffer.read())\n"
            "print(cls.backward(None, Tensor(np.ones(2))).tolist(), 'my_tools' in sys.modules)"
        )
        out = run_python(["-c", worker], tmp_path, blob)
        assert out.decode().strip() == "[31.0, 31.0] False"


def run_python(arguments, directory, stdin=b""):
    root = str(importlib.util.find_spec("mpgrad").submodule_search_locations[0])
    environment = {"PYTHONPATH": root.rsplit("/", 1)[0], "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        cwd=directory,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


class TestAttributes:
    @pytest.mark.parametrize(
        "value",
        [None, 1.5, (1, (2, "b")), np.float32(1), np.ones(3), slice(0, 2), np.exp, math.sqrt, dict],
    )
    def test_may_travel(self, value):
        assert reason_of({"k": value}) == ""

    def test_private_containers_may_travel(self):
        attributes = {}
        attributes["shapes"] = [(1, 2), (3,)]
        attributes["sizes"] = {"a": [1, 2]}
        assert reason_of(attributes) == ""

    @pytest.mark.parametrize(
        ("made_with", "compared"),
        [
            (lambda held: [[1.0], [2.0, "a"], 3], ()),
            (lambda held: {1: [2, 3], 2: [[1.0], (1, (2,))]}, ()),
            (lambda held: [held, [2.0]], ("path",)),
            (lambda held: [[[1], held]], ("path",)),
            (lambda held: {1: [held]}, ("path",)),
            (lambda held: [[1.0]] * 2, ("path",)),
            (lambda held: [([1.0],)], ("path",)),
            (lambda held: [[1.0], {2: held}], ("path",)),
        ],
    )
    def test_lists_inside_are_private_if_only_their_list_holds_them(self, made_with, compared):
        held = [1.0]
        attributes = {"path": made_with(held)}
        found = look_at(attributes)
        assert (found.problem, found.compared) == (None, compared)

    @pytest.mark.parametrize(
        "made", [lambda nan: [[1.0], [nan]], lambda nan: [(1, (nan, 2))], lambda nan: {1: [nan]}]
    )
    @pytest.mark.parametrize("nan", [float("nan"), np.float64("nan"), np.float32("nan")])
    def test_a_nan_at_any_depth_stays(self, made, nan):
        attributes = {"path": made(nan)}
        assert "a NaN" in reason_of(attributes)

    def test_what_others_may_change_is_compared(self):
        log, settings = [], {"a": [1.0]}
        frozen = dataclasses.make_dataclass("Frozen", ["value"], frozen=True)
        mutable = dataclasses.make_dataclass("Mutable", ["value"])
        for value in (
            log,
            {"inner": [log]},
            (log,),
            settings,
            types.MappingProxyType(settings),
            frozen([1.0]),
            mutable(1.0),
            Holder(),
            np.array([None]),
            CubicSpline([0.0, 1.0], [0.0, 1.0]),
            sparse.lil_matrix(np.eye(2)),
        ):
            found = look_at({"it": value})
            assert (found.problem, found.compared) == (None, ("it",))
            buffers = []
            data = pack_attributes({"it": value}, found.classes, buffers.append)
            compared = []
            loading.load_attributes(data, buffers, found.classes, [], compared)
            assert compared == ["it"]
        assert look_at({"it": sparse.csr_matrix(np.eye(2))}).compared == ()
        attributes = {"it": [1.0]}
        attributes["it"] = list(log)
        assert look_at(attributes).compared == ()

    def test_a_path_stays(self):
        assert reason_of({"k": pathlib.Path("a")}).startswith("`ctx.k` is a PosixPath")
        assert reason_of({"k": str(pathlib.Path("a"))}) == ""
        assert "call it by its global name" in reason_of({"k": lambda x: x})

    def test_methods_of_what_is_on_ctx_count(self, custom):
        module = custom(
            "value = 1.0",
            "import os, typing\nclass Lens(typing.NamedTuple):\n    focus: float\n"
            "    def scale(self): return os.getpid()",
        )
        assert decide(module.Custom).run_on == "worker"
        assert "`os.getpid`" in decide(module.Custom, (module.Lens,)).reason

    def test_what_pickle_refuses_has_another_remedy(self):
        problem = look_at({"lu": linalg.splu(sparse.eye_array(2).tocsc())}).problem
        assert problem.text == "`ctx.lu` is a SuperLU, which cannot be copied faithfully"
        words = in_words("F", problem)
        assert "make it again in backward" in words
        assert 'run_on = "worker"' not in words  # it would be an error

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (np.random.default_rng(0), "make the generator in backward"),
            (random.Random(0), "make the generator in backward"),
            (itertools.count(), "A worker would have one of its own"),
            (queue.Queue(), "A worker would have one of its own"),
        ],
    )
    def test_a_copy_of_a_state_is_not_offered(self, value, words):
        said = in_words("F", look_at({"state": value}).problem)
        assert words in said
        assert 'run_on = "client"' in said
        assert 'run_on = "worker"' not in said

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            lambda x: x,
            [object()],
            frozenset("ab"),
            {"a", "b"},
            Copied(),
            Tensor(np.ones(1), requires_grad=True),
        ],
    )
    def test_objects_stay(self, value):
        assert re.match("`ctx.k` (is|holds) a", reason_of({"k": value}))


def test_the_cache_is_bounded(monkeypatch, custom):
    monkeypatch.setattr(decisions, "CACHE_LIMIT", 2)
    monkeypatch.setattr(decisions, "_entries", type(decisions._entries)())
    for scale in range(4):
        decide(custom(f"value = {scale}").Custom)
    assert len(decisions._entries) == 2
