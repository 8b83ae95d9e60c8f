"""Settings of installed packages that were changed at run time: workers have them, too, or the
Function stays in the client."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

#: A package as pip installs it.
PACKAGE = """
import functools
import numpy as np
import mpgrad as mg

SCALE = 10.0
LIMIT = 10.0
OPTIONS = {"scale": 10.0}
TABLE = {"scale": 10.0}
COEFFICIENTS = np.array([10.0])

class Config:
    def __init__(self):
        self.scale = 10.0

    def set(self, value):
        self.scale = value

config = Config()

def set_scale(value):
    global SCALE
    SCALE = value

def set_option(value):
    OPTIONS["scale"] = value

def scaled(x):
    return x * _scale()

def _scale():
    return SCALE

def optional(x):
    return x * OPTIONS["scale"]

def configured(x):
    return x * config.scale

def limited(x):
    return x * LIMIT

def by_table(x):
    return x * TABLE["scale"] * COEFFICIENTS[0]

class Model:
    def run(self):
        return 2.0

@functools.lru_cache
def cached(x):
    return x * SCALE

class Scaling(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return scaled(grad)

class Optional(Scaling):
    @staticmethod
    def backward(ctx, grad):
        return optional(grad)
"""

SCRIPT = """
import math
import unittest.mock
import numpy as np
import mpgrad as mg
import settings_for_test as lib

class Base(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

class Scaled(Base):
    @staticmethod
    def backward(ctx, grad):
        return lib.scaled(grad)

class Configured(Base):
    @staticmethod
    def backward(ctx, grad):
        return lib.configured(grad)

class OptionalOfOurs(Base):
    @staticmethod
    def backward(ctx, grad):
        return lib.optional(grad)

class Limited(Base):
    @staticmethod
    def backward(ctx, grad):
        return lib.limited(grad) * lib.SCALE

class ByTable(Base):
    @staticmethod
    def backward(ctx, grad):
        return lib.by_table(grad)

class Hyperbolic(Base):
    @staticmethod
    def backward(ctx, grad):
        return grad * float(np.cosh(1.0))

class Modelled(Base):
    @staticmethod
    def backward(ctx, grad):
        return grad * lib.Model().run()

class Cached(Base):
    @staticmethod
    def backward(ctx, grad):
        return grad * lib.cached(1.0)

class Sets(Base):
    @staticmethod
    def backward(ctx, grad):
        lib.set_scale(lib.SCALE)
        return grad

FUNCTIONS = [Scaled, Configured, OptionalOfOurs, Limited, ByTable, Hyperbolic]
FUNCTIONS += [lib.Scaling, lib.Optional]

workers = mg.Engine("process", cpu_workers=1)
workers.__enter__()

def gradients():
    here, there = [], []
    for function in FUNCTIONS:
        for engine, found in ((mg.Engine("local"), here), (workers, there)):
            x = mg.ones(3, requires_grad=True)
            y = function.apply(x)
            if engine is workers:
                y.sum().backward()
            else:
                with engine:
                    y.sum().backward()
            found.append(x.grad[0].item())
    assert here == there, (here, there)
    return there

def places():
    found = []
    for function in FUNCTIONS:
        nodes = workers.explain(function.apply(mg.ones(3, requires_grad=True))).nodes
        name = f"{function.__name__}Backward"
        found += [node.where for node in nodes if node.name == name]
    return found

def change(value):
    lib.set_scale(value)
    lib.set_option(value)
    lib.config.set(value)
    lib.LIMIT = value

names = [function.__name__ for function in FUNCTIONS]
for value in (10.0, 100.0, 7.0, 10.0):
    change(value)
    rows = zip(names, gradients(), places())
    print(*(f"{name} {gradient:.0f} {place}" for name, gradient, place in rows), sep=", ")
for replacement in (lambda x: 5.0, np.sinh, unittest.mock.MagicMock(return_value=3.0)):
    with unittest.mock.patch("numpy.cosh", replacement):
        assert gradients()[5] == float(np.float32(replacement(1.0)))
        assert places()[5] == "client"
assert (gradients()[5], places()[5]) == (float(np.float32(math.cosh(1.0))), "worker")
FUNCTIONS[:] = [Modelled, Cached, Sets]
assert places() == ["worker", "client", "client"], places()
lib.Model.run = lambda self: 7.0
assert gradients() == [7.0, 10.0, 1.0], gradients()
assert places()[0] == "worker"
workers.__exit__(None, None, None)
"""

#: Another package: what it holds, an expression that reads it, and a change of that.
HOLDER = """
import collections, contextvars, itertools, os, threading, types

class Settings:
    scale = 10.0

    def scaled(self):
        return self.scale

SCALE = 10.0
space = types.SimpleNamespace(scale=10.0)
local = threading.local()
local.scale = 10.0
var = contextvars.ContextVar("var", default=10.0)
QUEUE = collections.deque([10.0])
HANDLERS = []
counter = itertools.count(1)

def by_default(x=10.0):
    return x

by_default.k = 10.0

def by_environment():
    return float(os.environ.get("SCALE", "10"))

def handled():
    return len(HANDLERS)

def from_inside():
    from holder_for_test import SCALE
    return SCALE

def closure():
    n = 10.0

    def get():
        return n

    def put(value):
        nonlocal n
        n = value

    return get, put

get_closure, set_closure = closure()

def __getattr__(name):
    if name == "computed":
        return SCALE
    raise AttributeError(name)
"""
HELD = [
    ("lib.Settings.scale", "lib.Settings.scale = 7.0"),
    ("lib.Settings().scaled()", "lib.Settings.scale = 8.0"),
    ("lib.space.scale", "lib.space.scale = 7.0"),
    ("lib.local.scale", "lib.local.scale = 7.0"),
    ("lib.var.get()", "lib.var.set(7.0)"),
    ("lib.QUEUE[0]", "lib.QUEUE[0] = 7.0"),
    ("lib.handled()", "lib.HANDLERS.append(1)"),
    ("next(lib.counter)", "pass"),
    ("lib.by_default()", "lib.by_default.__defaults__ = (7.0,)"),
    ("lib.by_default.k", "lib.by_default.k = 7.0"),
    ("lib.by_environment()", "os.environ['SCALE'] = '7'"),
    ("lib.get_closure()", "lib.set_closure(7.0)"),
    ("lib.from_inside()", "lib.SCALE = 7.0"),
    ("lib.computed", "lib.SCALE = 6.0"),
    ("lib.__dict__['SCALE']", "lib.SCALE = 5.0"),
    ("(lambda m: m.SCALE)(lib)", "lib.SCALE = 4.0"),
    ("lib.os.getpid() % 1000", "pass"),
]

HOLDER_SCRIPT = """
import contextlib, os
import mpgrad as mg
import holder_for_test as lib

class Base(mg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

def gradient(function, engine):
    x = mg.ones(1, requires_grad=True)
    with engine or contextlib.nullcontext():
        function.apply(x).sum().backward()
    return x.grad.item()

with mg.Engine("process", cpu_workers=1):
    for number, (expression, change) in enumerate(HELD):
        exec(
            f"class F{number}(Base):\\n"
            "    @staticmethod\\n"
            "    def backward(ctx, grad):\\n"
            f"        return grad * {expression}"
        )
        function = globals()[f"F{number}"]
        promised = type("Promised", (function,), {"run_on": "worker"})
        step = expression.startswith("next")
        for _ in range(2):
            here = gradient(function, mg.Engine("local"))
            there = gradient(function, None)
            assert there == here + step, (expression, change, here, there)
            exec(change)
    # What is promised, workers import themselves.
    x = mg.ones(1, requires_grad=True)
    promised.apply(x).sum().backward()
    assert x.grad.item() != os.getpid() % 1000
"""


def test_what_installed_code_holds(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that can be changed at run time is seen, as in the user's own code."""
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    installed = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(tmp_path)}))
    installed.mkdir(parents=True)
    (installed / "holder_for_test.py").write_text(HOLDER)
    done = run_script(
        f"import sys\nsys.path.append({str(installed)!r})\nHELD = {HELD!r}\n" + HOLDER_SCRIPT
    )
    assert done.returncode == 0, done.stderr


def test_what_installed_code_reads(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    installed = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(tmp_path)}))
    installed.mkdir(parents=True)
    (installed / "settings_for_test.py").write_text(PACKAGE)
    done = run_script(f"import sys\nsys.path.append({str(installed)!r})\n" + SCRIPT)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == (
        "Scaled 10 worker, Configured 10 worker, OptionalOfOurs 10 worker, Limited 100 worker, "
        "ByTable 100 worker, Hyperbolic 2 worker, Scaling 10 worker, Optional 10 worker"
    )
    assert [line.partition(",")[0] for line in others] == [
        "Scaled 100 worker",
        "Scaled 7 worker",
        "Scaled 10 worker",
    ]
