"""What the bytecode scan finds; the same on every supported interpreter."""

from __future__ import annotations

import pytest

from mpgrad.calls.custom_functions.code_reads import code_reads


def scan(body):
    names: dict[str, object] = {}
    exec("def f(ctx, g, y=1):\n    " + body.replace("\n", "\n    "), names)
    return code_reads(names["f"].__code__)


def found(body):
    """(name with its path, stored or not) of everything that is not only put into a variable."""
    return {(".".join((a.name, *a.path)), a.action) for a in scan(body).accesses}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("return s.sub.X", "s.sub.X"),
        ("return s.method(g)", "s.method"),
        ("m = s\nreturn y + m.X", "s.X"),
        ("m = s\nreturn h(y, m.Z, m.X)", "s.X"),
        ("return (m := s).X", "s.X"),
        ("a = b = s\nreturn b.X", "s.X"),
        ("if y:\n    m = t\nelse:\n    m = s\nreturn m.X", "s.X"),
        ("return [s.X for i in y]", "s.X"),
        ("return lambda: s.X", "s.X"),
        ("class A:\n    v = s.X", "s.X"),
        ("return getattr(s, 'X', None)", "s.X"),
        ("import numpy.random as r\nreturn r.rand()", "numpy.random.rand"),
        ("from numpy import random\nreturn random.rand()", "numpy.random.rand"),
        ("import os\nreturn os.environ['a']", "os.environ"),
        # Where the value cannot be followed, the name itself is reported.
        ("h(s)", "s"),
        ("m = s\nh(m)", "s"),
        ("m, k = s, t\nreturn m.X", "s"),
        ("m = s\nreturn lambda: m.X", "s"),
    ],
)
def test_loads(body, name):
    assert (name, "load") in found(body)


def test_a_variable_used_before_it_is_bound_in_a_loop():
    assert ("s.X", "alias") in found("for i in y:\n    z = m.X\n    m = s")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("F.calls = y", "F.calls"),
        ("F.calls += 1", "F.calls"),
        ("del F.calls", "F.calls"),
        ("global q\nq = 1", "q"),
        ("def inner():\n    global q\n    q += 1\ninner()", "q"),
    ],
)
def test_stores(body, name):
    assert (name, "store") in found(body)


@pytest.mark.parametrize(
    "body", ["getattr(s, y)", "getattr(s, 'a' + str(y))", "getattr(h(y), 'a')", "k = getattr"]
)
def test_computed_names(body):
    assert ("getattr", "computed") in found(body)


@pytest.mark.parametrize(
    ("body", "store"),
    [
        ("ctx.n = 1", ("ctx", "n")),
        ("ctx.n += 1", ("ctx", "n")),
        ("h(y).n += 1", ("", "n")),
        ("ctx.a.n = 1", ("", "n")),
        ("def inner(ctx):\n    ctx.n = 1\ninner(s)", ("", "n")),
    ],
)
def test_stores_on_objects(body, store):
    assert [(variable, name) for variable, name, _ in scan(body).stores] == [store]


def test_attributes_of_unknown_objects():
    assert [name for name, _ in scan("return g.random() + y.T").attributes] == ["random", "T"]
