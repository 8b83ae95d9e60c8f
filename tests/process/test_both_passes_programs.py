"""Programs with maps in them give the bits of the same programs with loops, wherever calls run."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.calls.map_time import MapTime
from mpgrad.engine.choice import Choice, Prediction
from mpgrad.engine.report.page import write_report
from mpgrad.parallel import placing
from mpgrad.profiler import profile
from mpgrad.scheduler.cost_model import CostModel
from mpgrad.scheduler.tuning import LOST_SHARE, START_US
from tests.leftovers import wait_until
from tests.process.test_parallel_map import bits, engine, leaves, serial

__all__ = ["engine"]
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def every_test_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "RUNS", placing.Runs())


def bits_of_both(
    program: Callable[[Callable[..., Any]], Any], *, uses_are_single: bool = True
) -> None:
    """``program(run)`` gives tensors: with the loop and with the map they have the same bits.

    Args:
        program: gets the loop or the map.
        uses_are_single: whether a call uses each parameter once. Else the order of sums differs
            from the loop's, but not from that of the map in ``local``.
    """
    expected, found = program(serial), program(mg.parallel_map)
    if not uses_are_single:
        for one, other in zip(found, expected, strict=True):
            assert np.allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-6)
        with mg.Engine("local"):
            expected = program(mg.parallel_map)
    assert bits(*found) == bits(*expected)


def gradients(module: nn.Module) -> list[mg.Tensor | None]:
    return [p.grad for p in module.parameters()]


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers)


# ---------------------------------------------------------------------- training steps


def test_a_step_of_a_gan(engine: mg.Engine) -> None:
    """Two models, two optimizers: the generator's loss goes through the discriminator."""

    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(0)
        makes, judges = mlp(3, 8, 4), mlp(4, 8, 1)
        of_maker = mg.optim.Adam(makes.parameters(), lr=0.01)
        of_judge = mg.optim.SGD(judges.parameters(), lr=0.1)
        noise, real = leaves(1, *[(5, 3)] * 4), leaves(2, *[(5, 4)] * 4)
        for _ in range(2):
            fakes = run(lambda z: makes(z.detach()), noise)
            of_judge.zero_grad()
            on_real = run(lambda x: judges(x.detach()).sigmoid().log().mean(), real)
            on_fake = run(
                lambda x: (1 - judges(x).sigmoid()).log().mean(), [f.detach() for f in fakes]
            )
            (-mg.stack(on_real).mean() - mg.stack(on_fake).mean()).backward()
            of_judge.step()
            of_maker.zero_grad()
            scores = run(lambda x: judges(x).sigmoid().log().mean(), fakes)
            (-mg.stack(scores).mean()).backward()
            of_maker.step()
        return [*makes.parameters(), *judges.parameters(), *gradients(makes), *gradients(judges)]

    bits_of_both(program)


def test_an_rnn_that_is_truncated_by_detach(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(1)
        cell = nn.GRUCell(3, 4)
        optimizer = mg.optim.SGD(cell.parameters(), lr=0.1)
        states = [mg.zeros(2, 4) for _ in range(3)]
        found: list[Any] = []

        def unrolled(h: mg.Tensor, xs: mg.Tensor) -> tuple[mg.Tensor, mg.Tensor]:
            for x in xs:
                h = cell(x, h)
            return h.square().sum(), h.detach()

        for chunk in range(3):
            inputs = [one.detach() for one in leaves(10 + chunk, *[(4, 2, 3)] * 3)]
            outs = run(unrolled, states, inputs)
            optimizer.zero_grad()
            mg.stack([loss for loss, _ in outs]).sum().backward()
            found += [g.clone() for g in gradients(cell) if g is not None]
            optimizer.step()
            states = [h for _, h in outs]
            assert not any(h.requires_grad for h in states)
        return [*found, *states]

    bits_of_both(program, uses_are_single=False)


def test_four_accumulated_micro_batches(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(2)
        net = mlp(3, 5, 1)
        for batch in range(4):
            outs = run(lambda x: net(x).square().mean() / 4, leaves(20 + batch, *[(4, 3)] * 3))
            mg.stack(outs).sum().backward()
        return gradients(net)

    bits_of_both(program)


def test_micro_batches_whose_backward_comes_at_the_end(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(3)
        net = mlp(3, 5, 1)
        losses = [
            mg.stack(run(lambda x: net(x).square().mean(), leaves(30 + k, *[(4, 3)] * 2))).sum()
            for k in range(4)
        ]
        mg.stack(losses).sum().backward()
        return gradients(net)

    bits_of_both(program)


def test_a_penalty_that_may_fail(engine: mg.Engine) -> None:
    """try/except around a map, and inside of a call."""

    def root(a: mg.Tensor) -> mg.Tensor:
        try:
            if float(a.detach().sum()) < 0:
                raise ArithmeticError("not positive")
            return a.abs().sqrt().sum()
        except ArithmeticError:
            return a.square().sum() * 10

    def fails(a: mg.Tensor) -> mg.Tensor:
        if float(a.detach().sum()) < 0:
            raise ArithmeticError("not positive")
        return a.sum()

    def program(run: Callable[..., Any]) -> list[Any]:
        xs = leaves(4, *[(3,)] * 6)
        losses = run(root, xs)
        try:
            losses += run(fails, xs)
        except ArithmeticError:
            losses += run(lambda a: a.square().sum(), xs)
        mg.stack(losses).sum().backward()
        return [x.grad for x in xs]

    bits_of_both(program)


class Mixture(nn.Module):
    """Experts with a load loss that its users read from ``self.aux``."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__()
        self.gate, self.returns = nn.Linear(3, 2), returns
        self.experts = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.aux: Any = None

    def forward(self, x: mg.Tensor) -> Any:
        weights = self.gate(x).softmax(-1)
        aux = weights.mean(0).square().sum()
        out = sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))
        if self.returns:
            return out, aux
        self.aux = aux
        return out


def test_a_mixture_that_keeps_its_aux_loss_in_itself(engine: mg.Engine) -> None:
    """It would be lost: an error that names it; what is returned has its gradient."""
    mg.manual_seed(5)
    with pytest.raises(RuntimeError, match=r"aux`.*Return it"):
        mg.parallel_map(Mixture(returns=False), leaves(5, (4, 3), (4, 3)))

    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(6)
        net = Mixture(returns=True)
        outs = run(net, leaves(6, *[(4, 3)] * 3))
        mg.stack([out.sum() + 0.1 * aux for out, aux in outs]).sum().backward()
        return gradients(net)

    bits_of_both(program)


# ---------------------------------------------------------------------- between the passes


@pytest.mark.parametrize("size", [4, 300], ids=["small", "large"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_ema_by_data_between_the_passes(engine: mg.Engine, size: int, is_lost: bool) -> None:
    """``p.data = q`` gives other memory: what the branch has saved stays as it was."""

    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(7)
        net, average = nn.Linear(size, size), nn.Linear(size, size)
        outs = run(lambda x: (net(x) * average(x).detach()).sum(), leaves(7, *[(2, size)] * 3))
        for p, q in zip(average.parameters(), net.parameters(), strict=True):
            p.data = p.data * 0.9 + q.data * 0.1
        for p in net.parameters():
            p.data = p.data * 2
        if is_lost and engine.mode == "local":
            BRANCHES.clear()
        mg.stack(outs).sum().backward()
        return [*gradients(net), *net.parameters(), *average.parameters()]

    bits_of_both(program)


def test_load_state_dict_by_assignment_between_the_passes(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(8)
        net, other = nn.Linear(3, 3), nn.Linear(3, 3)
        xs = leaves(8, *[(2, 3)] * 2)
        outs = run(lambda x: net(x).square().sum(), xs)
        before = list(net.parameters())
        net.load_state_dict(other.state_dict(), assign=True)
        mg.stack(outs).sum().backward()
        return [*[p.grad for p in before], *[x.grad for x in xs], *net.parameters()]

    bits_of_both(program)


def test_an_assignment_under_a_view_of_the_memory(engine: mg.Engine) -> None:
    """The version error comes for what was saved, whichever tensor lies over the memory."""

    def program(run: Callable[..., Any]) -> list[Any]:
        flat = mg.arange(6.0)
        w = flat[:3].clone().requires_grad_()
        (out,) = run(lambda x: (x * w).sum(), leaves(9, (3,)))
        w.data.mul_(2)  # other tensors over the memory do not count, as in PyTorch
        out.backward()
        return [w.grad]

    bits_of_both(program)


def test_an_argument_that_is_detached_inside_is_no_source(engine: mg.Engine) -> None:
    """The graph behind it is not run, and can still be differentiated: a GAN's step."""

    def program(run: Callable[..., Any]) -> list[Any]:
        w, v, *xs = leaves(21, (3,), (3,), (3,), (3,))
        fakes = run(lambda x: x * w.sin(), xs)
        sum(run(lambda fake: (fake.detach() * v).sum(), fakes)).backward()
        assert w.grad is None
        sum(run(lambda fake: (fake * v).sum(), fakes)).backward()
        return [w.grad, v.grad]

    bits_of_both(program)


def test_the_gradient_of_an_argument_that_is_not_used_is_pytorchs_error(engine: mg.Engine) -> None:
    x, y = leaves(22, (3,), (3,))
    (out,) = mg.parallel_map(lambda a, b: (a * b.detach()).sum(), [x], [y])
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        mg.grad(out, [x, y], retain_graph=True)
    assert mg.grad(out, [x, y], allow_unused=True)[1] is None


# ---------------------------------------------------------------------- identities


class _Sentinel:
    pass


MISSING = _Sentinel()


def test_a_sentinel_is_compared_by_identity(engine: mg.Engine) -> None:
    """Of the module, of a closure, of a default, in shared and in an item: the same object."""
    local = _Sentinel()

    def picks(a: Any, b: Any, c: Any, default: Any = MISSING) -> tuple[bool, ...]:
        return a is MISSING, b is local, c is MISSING, default is MISSING, a is default

    items = [MISSING, local, None]
    assert mg.parallel_map(picks, items, [local] * 3, shared=(MISSING,)) == serial(
        picks, items, [local] * 3, shared=(MISSING,)
    )
    found = mg.parallel_map(lambda one: one, items)
    assert found[0] is not None
    assert mg.wait(mg.fork(picks, MISSING, local, None)) == picks(MISSING, local, None)


# ---------------------------------------------------------------------- from where it is called


def test_a_map_in_a_thread(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        w, *xs = leaves(10, (3,), *[(3,)] * 4)
        found: list[Any] = []

        def works(k: int) -> None:
            outs = run(lambda x: (x * w).sum() * k, xs)
            found.append((k, mg.stack(outs).sum()))

        threads = [threading.Thread(target=works, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        mg.stack([loss for _, loss in sorted(found, key=lambda one: one[0])]).sum().backward()
        return [x.grad for x in xs]

    # Each thread has a session, which the engine keeps.
    with mg.Engine(engine.mode, cpu_workers=engine.cpu_workers):
        bits_of_both(program)


def test_a_backward_in_another_thread_than_its_map(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        w, *xs = leaves(11, (3,), *[(3,)] * 4)
        loss = mg.stack(run(lambda x: (x * w).sum(), xs)).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return [w.grad, *[x.grad for x in xs]]

    bits_of_both(program)


def test_a_map_in_asyncio(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        w, *xs = leaves(12, (3,), *[(3,)] * 4)

        async def step(k: int) -> Any:
            await asyncio.sleep(0)
            return mg.stack(run(lambda x: (x * w).sum() * k, xs)).sum()

        async def main() -> None:
            losses = await asyncio.gather(*[step(k) for k in range(3)])
            mg.stack(losses).sum().backward()

        asyncio.run(main())
        return [w.grad, *[x.grad for x in xs]]

    bits_of_both(program)


def test_a_map_in_a_function_of_the_client(engine: mg.Engine) -> None:
    """In its forward, and in its backward, which is a backward inside of one."""

    def program(run: Callable[..., Any]) -> list[Any]:
        class Maps(mg.Function):
            run_on = "client"

            @staticmethod
            def forward(ctx: Any, x: mg.Tensor) -> Any:
                ctx.save_for_backward(x)
                return mg.stack(run(lambda k: x.detach() * k, [1.0, 2.0])).sum(0)

            @staticmethod
            def backward(ctx: Any, grad: mg.Tensor) -> Any:
                (x,) = ctx.saved_tensors
                parts = run(lambda k: grad * k + 0 * x.detach(), [1.0, 2.0])
                return mg.stack(parts).sum(0)

        (x,) = leaves(13, (3,))
        y = Maps.apply(x)
        (y * y).sum().backward()
        return [y, x.grad]

    bits_of_both(program)


def test_a_map_with_its_backward_in_a_hook(engine: mg.Engine) -> None:
    def program(run: Callable[..., Any]) -> list[Any]:
        x, w = leaves(14, (3,), (3,))

        def hook(grad: mg.Tensor) -> mg.Tensor:
            with mg.enable_grad():
                y = w.detach().requires_grad_()
                outs = run(lambda k: (y.exp() * k).sum(), [1.0, 2.0])
                (inner,) = mg.grad(mg.stack(outs).sum(), y)
            return grad * inner

        y = x * 2
        y.register_hook(hook)
        y.sum().backward()
        return [x.grad]

    bits_of_both(program)


FORKS_AND_ENDS = """
import mpgrad as mg
x = mg.ones(3, requires_grad=True)
def waits():
    import threading
    threading.Event().wait({wait})
    return (x * 2).sum()

mg.parallel_map(abs, [1, 2])
futures = [mg.fork(waits) for _ in range(3)]
print("ended")
{end}
"""


@pytest.mark.parametrize("mode", ["local", "auto", "process"])
@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "import os; os._exit(0)"])
def test_a_fork_and_then_the_end(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    end: str,
) -> None:
    """The program ends at once, without a word, and leaves no process."""
    monkeypatch.setenv("MPGRAD_ENGINE", mode)
    monkeypatch.setenv("MPGRAD_CPU_WORKERS", "2")
    wait = "3600" if mode == "process" else "0"
    done = run_script(FORKS_AND_ENDS.format(wait=wait, end=end))
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("ended\n", "") if "_exit" in end else done.stdout == "ended\n"
    assert done.stderr == ""


def test_maps_leave_nothing_behind(engine: mg.Engine) -> None:
    gc.collect()
    before = engine.statistics().branches
    net = mlp(3, 4, 1)
    for _ in range(3):
        outs = mg.parallel_map(lambda x: net(x).sum(), leaves(15, *[(2, 3)] * 4))
        mg.stack(outs).sum().backward()
    del outs
    gc.collect()

    def all_are_gone() -> bool:
        mg.parallel_map(abs, range(8))  # what goes with it tells the workers
        return engine.statistics().branches <= before

    assert wait_until(all_are_gone)
    assert np.isfinite(net[0].weight.grad.numpy()).all()


# ---------------------------------------------------------------------- beside mg.compile


def test_a_map_or_a_fork_in_a_compiled_function_says_why_it_is_not_compiled(
    engine: mg.Engine,
) -> None:
    def step(run: Callable[..., Any], x: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
        return mg.stack(run(lambda k: (x * w * k).sin().sum(), [1.0, 2.0])).sum()

    def fork(run: Callable[..., Any], x: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
        return mg.wait(mg.fork(lambda: (x * w).sin().sum()))

    for program in (step, fork):
        expected = leaves(16, (3,), (3,))
        program(serial, *expected).backward()
        found = leaves(16, (3,), (3,))
        compiled = mg.compile(program)
        with pytest.warns(mg.errors.PerformanceWarning, match="a loop in their place"):
            compiled(mg.parallel_map, *found).backward()
        for x in found:
            x.grad = None
        compiled(mg.parallel_map, *found).backward()
        assert bits(*[x.grad for x in found]) == bits(*[x.grad for x in expected])
        with pytest.raises(mg.errors.CompilationError, match="a loop in their place"):
            mg.compile(program, fullgraph=True)(mg.parallel_map, *found)


def test_a_compiled_function_in_a_map(engine: mg.Engine) -> None:
    """There it is the function itself, also where it has cases that are compiled."""

    def program(run: Callable[..., Any]) -> list[Any]:
        mg.manual_seed(17)
        square = mg.compile(lambda x: (x * x).sin().sum())
        net = mg.compile(nn.Linear(3, 2))
        found: list[Any] = []
        for k in range(4):
            xs = leaves(17 + k, *[(2, 3)] * 3)
            mg.stack(run(lambda x: square(x) + net(x).sum(), xs)).sum().backward()
            (square(xs[0]) + net(xs[0]).sum()).backward()
            found += [x.grad for x in xs]
        assert square.compilation.variants
        return [*found, *gradients(net)]

    bits_of_both(program)


# ---------------------------------------------------------------------- figures


def recorded_in_a_profile(x: mg.Tensor) -> mg.Tensor:
    return (x * x).sin().sum()


def test_a_profile_shows_the_forward_of_calls_on_the_lanes_of_workers(engine: mg.Engine) -> None:
    with profile() as prof:
        outs = mg.parallel_map(recorded_in_a_profile, leaves(18, *[(5,)] * 6))
        forked = mg.wait(mg.fork(recorded_in_a_profile, *leaves(19, (5,))))
        (mg.stack(outs).sum() + forked).backward()
    name = "recorded_in_a_profile"
    ranges = [one for one in prof.recording.ranges if one.name == name]
    assert len(ranges) == 7
    assert all(prof.recording.origin <= one.started <= one.ended for one in ranges)
    around = [one for one in prof.recording.ranges if one.name == f"parallel_map({name})"]
    assert len(around) == 1
    if engine.mode == "process":
        workers = {one.worker for one in ranges}
        assert workers <= set(range(engine.cpu_workers))
        assert set(prof.recording.worker_pids) == set(range(engine.cpu_workers))
        rows = {row.key: row for row in prof.key_averages()}
        assert rows[name].workers == workers
        assert rows[name].count == 7
    if engine.mode == "local":
        assert {one.worker for one in ranges} == {-1}


def test_the_report_has_a_row_for_each_worker_that_ran_calls(tmp_path: Path) -> None:
    """Without any backward, too."""
    with mg.Engine("process", cpu_workers=2), profile() as prof:
        mg.parallel_map(recorded_in_a_profile, leaves(20, *[(5,)] * 6))
    write_report(prof.recording, str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    match = re.search(r'\{"ranges": .*\}', text)
    assert match is not None
    found = json.loads(match[0])
    workers = {one.worker for one in prof.recording.ranges if one.worker >= 0}
    assert {f"worker {slot}" for slot in workers} <= set(found["rows"])
    lanes = {row for _, name, row, *_ in found["ranges"] if name == "recorded_in_a_profile"}
    assert lanes == {f"worker {slot}" for slot in workers}


def where_it_runs(_: int) -> int:
    return os.getpid()


def test_auto_takes_short_items_back_from_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had learned a long time, of the first run; the workers tell how long an item takes."""
    times = CostModel()
    monkeypatch.setattr(placing, "TIMES", times)
    key = f"{where_it_runs.__module__}.{where_it_runs.__qualname__}"
    times.observe(key, [50_000.0])
    with mg.Engine("auto", cpu_workers=2) as engine:
        engine.execution_for_calls().sessions.start()
        assert os.getpid() not in mg.parallel_map(where_it_runs, range(8))
        assert wait_until(lambda: mg.parallel_map(where_it_runs, range(8)) == [os.getpid()] * 8)
    learned = times.get(key)
    assert learned is not None
    assert learned < 50_000.0


def test_what_maps_have_taken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the items are said to be, and wherever the workers are slow."""
    monkeypatch.setattr(placing, "TIMES", CostModel())
    key = f"{where_it_runs.__module__}.{where_it_runs.__qualname__}"
    with mg.Engine("auto", cpu_workers=2) as engine:
        execution = engine.execution_for_calls()
        execution.sessions.start()
        predicted = Prediction(8_000.0, 5_000.0)
        for mode, took_us in (("local", 8_000.0), ("process", 400_000.0)):
            for _ in range(4):
                choice = Choice(mode, "", predicted)
                execution.maps.of(((key, True), 8)).note(mode, took_us, choice)  # type: ignore[arg-type]
        for _ in range(4):
            placing.TIMES.observe(key, [50_000.0])
            assert set(mg.parallel_map(where_it_runs, range(8))) == {os.getpid()}
        monkeypatch.setattr(placing, "TIMES", CostModel())
        placing.TIMES.observe(key, [50_000.0])
        assert os.getpid() not in mg.parallel_map(where_it_runs, range(9))


def squared(x: mg.Tensor) -> mg.Tensor:
    return (x * x).sum()


@pytest.mark.parametrize("way", ["together", "one by one", "no grad", "never"])
def test_what_a_map_takes_is_both_passes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that are short forward and long backward had stayed here."""
    monkeypatch.setattr(placing, "TIMES", CostModel())
    added: list[float] = []
    add = MapTime.add

    def noted(one: MapTime, took_us: float) -> None:
        added.append(took_us)
        add(one, took_us)

    monkeypatch.setattr(MapTime, "add", noted)
    leaves = [mg.ones(3, requires_grad=True) for _ in range(4)]
    with mg.Engine("auto", cpu_workers=2) as engine:
        with mg.set_grad_enabled(way != "no grad"):
            outs = mg.parallel_map(squared, leaves)
        key = f"{squared.__module__}.{squared.__qualname__}", way != "no grad"
        experience = engine.execution_for_calls().maps.of((key, 4))
        assert len(experience.ended) == (way == "no grad")
        if way == "together":
            mg.stack(outs).sum().backward()
        elif way == "one by one":
            for out in outs:
                out.backward()
        if way == "never":
            outs.clear()
    backwards = {"together": 1, "one by one": 4}.get(way, 0)
    assert len(added) == backwards
    ((mode, took_us, choice),) = experience.ended
    assert (mode, choice) == ("local", None)
    assert took_us > sum(added)
    experience.note_ended()
    assert not experience.ended
    assert experience.start_after_us < START_US / LOST_SHARE
