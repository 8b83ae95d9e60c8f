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
assert places()[0] == "client"
workers.__exit__(None, None, None)
"""


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
        "Scaled 10 worker, Configured 10 client, OptionalOfOurs 10 client, Limited 100 worker, "
        "ByTable 100 worker, Hyperbolic 2 worker, Scaling 10 worker, Optional 10 client"
    )
    assert [line.partition(",")[0] for line in others] == [
        "Scaled 100 worker",
        "Scaled 7 worker",
        "Scaled 10 worker",
    ]
