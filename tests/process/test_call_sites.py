"""Errors name the call of forward; a slow loop of ``apply`` and dear comparisons are told."""

from __future__ import annotations

import linecache
import types
import warnings
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.engine import placement

pytestmark = pytest.mark.process

#: Line 16 calls ``apply`` in a loop.
SOURCE = """
import time
import mpgrad as mg
TABLE = {str(at): float(at) for at in range(20_000)}
class F(mg.Function):
    @staticmethod
    def forward(ctx, x, number):
        ctx.number = number
        ended = time.perf_counter() + SECONDS
        while time.perf_counter() < ended: pass
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        if ctx.number == 3: raise ValueError("no fourth")
        return grad * TABLE["3"], None
def loop(x, n): return [F.apply(x, at) for at in range(n)]
def chain(x, n):
    for at in range(n):
        x = F.apply(x, at - 9) + 1
    return [x]
"""


def module(seconds: float = 0.0, source: str = SOURCE) -> Any:
    """Its source, as a notebook's, is known in this process alone."""
    made: Any = types.ModuleType("call_sites")
    made.SECONDS = seconds
    file = "<cell 7>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), vars(made))
    return made


def x() -> mg.Tensor:
    return mg.ones(3, requires_grad=True)


def loss(outputs: list[mg.Tensor]) -> mg.Tensor:
    return mg.stack(outputs).sum()


@pytest.mark.parametrize("mode", ["local", "process"])
@pytest.mark.parametrize("again", [1, 4])
def test_an_error_names_the_call_of_forward(mode: str, again: int) -> None:
    user = module()
    with mg.Engine(mode, cpu_workers=2):
        for _ in range(again):  # a graph that comes again is compiled
            with pytest.raises(ValueError, match="no fourth") as raised:
                loss(user.loop(x(), 5)).backward()
    assert "its forward: F.apply() at <cell 7>:16, call 4 of 5" in raised.value.__notes__


def test_a_remote_traceback_has_the_lines_of_a_notebook() -> None:
    user = module(
        source=SOURCE.replace(
            "class F(mg.Function):", 'class F(mg.Function):\n    run_on = "worker"'
        )
    )
    with mg.Engine("process", cpu_workers=2), pytest.raises(ValueError, match="no f") as raised:
        loss(user.loop(x(), 5)).backward()
    text = str(raised.value.__cause__)
    assert 'File "<cell 7>", line 15, in backward\n    if ctx.number == 3: raise' in text


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_said", type(placement._said)())


@pytest.mark.usefixtures("unsaid")
def test_one_hint_in_a_program_names_a_slow_loop() -> None:
    user = module(0.012)
    with mg.Engine("process", cpu_workers=2), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            loss(user.loop(x(), 3)).backward()  # too few
        loss(user.chain(x(), 6)).backward()  # one after another
        assert not [one for one in said if "apply()" in str(one.message)]
        user.TABLE["3"] = 4.0
        for _ in range(3):
            with pytest.raises(ValueError, match="no fourth"):
                loss(user.loop(x(), 6)).backward()
    (text,) = [str(one.message) for one in said if "apply()" in str(one.message)]
    assert text.startswith("6 calls of F.apply() at <cell 7>:16 take ")
    assert "F.map(xs) in place of the loop, or mpgrad.parallel_map" in text


@pytest.mark.usefixtures("unsaid")
def test_a_loop_of_fast_calls_is_not_told() -> None:
    user = module()
    with mg.Engine("process", cpu_workers=2), warnings.catch_warnings():
        warnings.simplefilter("error")
        loss([user.F.apply(x(), at - 9) for at in range(6)]).backward()


def test_explain_names_the_loop_and_what_comparing_costs() -> None:
    user = module(0.003)
    with mg.Engine("local") as engine:
        loss(user.loop(x(), 3)).backward()
        text = str(engine.explain(loss(user.loop(x(), 6))))
        chained = str(engine.explain(loss(user.chain(x(), 6))))
    assert "6 calls of F.apply() at <cell 7>:16 take" in text
    assert "calls of F.apply()" not in chained
    assert "F: comparing what it reads takes" in text
    assert "most of it F.backward() (line 15) reads the global `TABLE`. Give arrays" in text


SMALL = """
import mpgrad as mg
class F(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.names = [str(at) for at in range(size)]
        ctx.names.append(ctx)
        ctx.names.pop()
        names.append(ctx.names)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * sum(range(100_000)) * len(ctx.names)
names = []
"""


@pytest.mark.parametrize(("size", "is_told"), [(1, False), (100_000, True)])
def test_what_comparing_a_ctx_costs(size: int, *, is_told: bool) -> None:
    user = module(source=SMALL)
    user.size = size
    with mg.Engine("local") as engine:
        (user.F.apply(x()) + user.F.apply(x())).sum().backward()
        text = str(engine.explain((user.F.apply(x()) + user.F.apply(x())).sum()))
    assert ("most of it `ctx.names`. Set arrays and numbers on ctx" in text) == is_told


def test_a_profile_names_the_loop(tmp_path: Any) -> None:
    user = module(0.003)
    path = tmp_path / "report.html"
    with mg.Engine("local"), mg.profiler.profile() as profile:
        loss([user.F.apply(x(), at - 9) for at in range(6)]).backward()
    mg.profiler.report(path, profile)
    assert "6 calls of F.apply() at test_call_sites.py:" in path.read_text()
