"""Natural Functions run in workers as first written, with the bits of ``local``."""

from __future__ import annotations

import types
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.engine import placement
from tests.process.matrix_bodies import BODIES, SOURCE
from tests.process.natural_kinds import ON_CTX, READS, count_functions, program, runs
from tests.process.natural_programs import PROGRAMS, steps

pytestmark = pytest.mark.process

#: What each process has for itself, and what has no copy.
CLIENT = {"environment", "clock of the zone", "Generator", "lock", "SuperLU"}


@pytest.mark.filterwarnings("ignore::mpgrad.errors.PerformanceWarning")
@pytest.mark.parametrize("place", ["by name", "on ctx"])
def test_where_they_run(place: str) -> None:
    pytest.importorskip("scipy")
    count_functions()
    kinds = READS if place == "by name" else ON_CTX
    expected = {name: "client" if name in CLIENT else "worker" for name in kinds}
    modules, bits, places = {}, {}, {}
    with mg.Engine("local"):
        for name, kind in kinds.items():
            mg.manual_seed(0)
            bits[name], _ = runs(program(kind), 3)
            mg.manual_seed(0)
            modules[name] = program(kind)
    with mg.Engine("process", cpu_workers=2):
        for name, module in modules.items():
            assert runs(module, 3)[0] == bits[name], name
            places[name] = "worker" if runs(module, 1)[1] == 2 else "client"
    assert places == expected
    assert (len(kinds), list(places.values()).count("worker")) == (
        (53, 49) if place == "by name" else (43, 41)
    )


SETS_ON_CTX = """
import mpgrad as mg

class Inner(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0
        return x * 2.0

class F(mg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.calls = 0
        ctx.kept = [1.0]
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        {body}
        return grad * 3.0
"""


@pytest.mark.filterwarnings("ignore::mpgrad.errors.PerformanceWarning")
@pytest.mark.parametrize(
    "body",
    [
        "ctx.calls += 1",
        "ctx.seen = 1",
        "if hasattr(ctx, 'calls'): del ctx.calls",
        "Inner.forward(ctx, grad)",
        "setattr(ctx, 'seen', 1)",
        "vars(ctx).update(seen=1)",
        "ctx.kept = [2.0]",
    ],
)
@pytest.mark.parametrize("has_hook", [False, True])
def test_what_backward_sets_on_ctx_is_there_afterwards(body: str, *, has_hook: bool) -> None:
    found = []
    for mode in ("local", "process"):
        module: Any = types.ModuleType("sets_on_ctx")
        exec(compile(SETS_ON_CTX.format(body=body), "sets_on_ctx.py", "exec"), vars(module))
        with mg.Engine(mode, cpu_workers=2):
            for _ in range(2):
                x = mg.tensor([1.0, 2.0], requires_grad=True)
                y, z = module.F.apply(x), module.F.apply(x * 2)
                if has_hook:
                    y.register_hook(lambda grad: grad * 1.5)
                for _ in range(2):
                    (y + z).sum().backward(retain_graph=True)
                assert x.grad is not None
                found.append((mode, x.grad.tolist(), [vars(node.grad_fn.ctx) for node in (y, z)]))
    results = [(grad, str(left)) for _, grad, left in found]
    assert results[:2] == results[2:]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_as_first_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_said", type(placement._said)())
    program = PROGRAMS[name]
    with mg.Engine("local"):
        *_, expected = steps(program.function)
    with mg.Engine("process", cpu_workers=2):
        where, texts, gradients = steps(program.function)
    assert (where, gradients) == (program.where, expected)
    assert len(texts) == bool(program.message)
    assert all(program.message in text and len(text.split()) <= 32 for text in texts)


def test_bodies_that_read_a_matrix(recwarn: pytest.WarningsRecorder) -> None:
    """In workers at the first try, with the bits of ``local``."""
    pytest.importorskip("scipy")
    count_functions()
    modules: list[Any] = []
    for at, body in enumerate(BODIES):
        modules.append(types.ModuleType(f"reads_matrix_{at}"))
        source = SOURCE.format(body=body.replace("\n", "\n        "))
        exec(compile(source, f"reads_matrix_{at}.py", "exec"), vars(modules[-1]))
    with mg.Engine("local"):
        expected = [runs(module, 1)[0] for module in modules]
    matrices = [module.M.tobytes() for module in modules]
    with mg.Engine("process", cpu_workers=2):
        found = [runs(module, 1) for module in modules]
    assert found == [(bits, 2) for bits in expected]
    assert [module.M.tobytes() for module in modules] == matrices
    assert [str(one.message) for one in recwarn] == []
    assert len(BODIES) == 31
