"""parallel_map: the results and gradients of the loop that it stands for, wherever calls run."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.parallel import placing
from tests.leftovers import wait_until
from tests.process.test_hidden_state import tasks_of_workers

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def every_test_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a function changes is compared in its first calls only, and code is counted by test."""
    monkeypatch.setattr(placing, "RUNS", placing.Runs())


@pytest.fixture(scope="module", params=["local", "process-1", "process-2", "process-4", "auto"])
def engine(request: pytest.FixtureRequest) -> Iterator[mg.Engine]:
    mode, _, workers = request.param.partition("-")
    with mg.Engine(mode, cpu_workers=int(workers or 2)) as engine:
        if mode != "local":
            sessions = engine.execution_for_calls().sessions
            sessions.start()  # in auto they start when they are worth it
            # The thread that serves forks may still have its session when the caller needs one.
            with sessions.session(), sessions.session():
                pass
        yield engine


def leaves(seed: int, *shapes: tuple[int, ...]) -> list[mg.Tensor]:
    rng = np.random.default_rng(seed)
    return [
        mg.tensor(rng.standard_normal(shape).astype("f4"), requires_grad=True) for shape in shapes
    ]


def bits(*tensors: mg.Tensor | None) -> list[bytes | None]:
    return [None if one is None else one.detach().numpy().tobytes() for one in tensors]


def serial(fn: Callable[..., Any], *iterables: Any, shared: Any = ()) -> list[Any]:
    return [fn(*item, *shared) for item in zip(*iterables, strict=True)]


# ---------------------------------------------------------------------- results and gradients


def branch(x: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
    return (x @ w).tanh().sum()


def test_results_and_gradients_are_those_of_the_loop(engine: mg.Engine) -> None:
    found = []
    for run in (serial, mg.parallel_map):
        w, *xs = leaves(0, (5, 5), *[(3, 5)] * 6)
        outs = run(branch, xs, shared=(w,))
        mg.stack(outs).sum().backward()
        found.append(bits(*outs, w.grad, *[x.grad for x in xs]))
    assert found[0] == found[1]


def test_a_tensor_in_a_closure_is_an_input(engine: mg.Engine) -> None:
    found = []
    for run in (serial, mg.parallel_map):
        w, x = leaves(1, (4, 4), (2, 4))
        outs = run(lambda k: branch(x * k, w), [1.0, 2.0, 3.0])  # noqa: B023
        mg.stack(outs).sum().backward()
        found.append(bits(w.grad, x.grad))
    assert found[0] == found[1]


def test_trees_come_back(engine: mg.Engine) -> None:
    class Pair(NamedTuple):
        value: mg.Tensor
        text: str

    (x,) = leaves(2, (3,))
    (first, second), again = mg.parallel_map(
        lambda k: [Pair(x * k, f"item {k}"), {"n": [x.sum(), k, None]}], [2, 3]
    )
    assert isinstance(first, Pair)
    assert first.text == "item 2"
    assert bits(first.value) == bits(x * 2)
    assert second["n"][1:] == [2, None]
    assert again[0].text == "item 3"


def test_a_result_that_is_an_argument_is_that_argument(engine: mg.Engine) -> None:
    (x,) = leaves(3, (3,))
    assert mg.parallel_map(lambda y: (y, y * 2), [x])[0][0] is x


def test_one_branch_is_differentiated_alone(engine: mg.Engine) -> None:
    xs = leaves(4, (3,), (3,))
    outs = mg.parallel_map(lambda x: x.exp().sum(), xs)
    (alone,) = mg.grad(outs[1], xs[1])
    assert bits(alone) == bits(xs[1].exp())
    assert mg.grad(outs[0], xs[1], allow_unused=True) == (None,)


def test_maps_in_a_chain(engine: mg.Engine) -> None:
    found = []
    for run in (serial, mg.parallel_map):
        w, *xs = leaves(5, (4, 4), *[(4,)] * 3)
        middle = run(lambda x: (w @ x).tanh(), xs)  # noqa: B023
        outs = run(lambda x, y: (w @ (x * y)).sum(), middle, xs)  # noqa: B023
        mg.stack(outs).sum().backward()
        found.append(bits(w.grad, *[x.grad for x in xs]))
    assert found[0] == found[1]


@pytest.mark.parametrize("chunks", [None, 1, 2, 5])
def test_a_sum(engine: mg.Engine, chunks: int | None) -> None:
    w, *xs = leaves(6, (4, 4), *[(4,)] * 5)
    total, count = mg.parallel_map(lambda x: ((w @ x).sin().sum(), 1), xs, out="sum", chunks=chunks)
    assert count == 5
    total.backward()
    expected = sum(float((w.detach() @ x.detach()).sin().sum().numpy()) for x in xs)
    assert abs(float(total.detach().numpy()) - expected) < 1e-5
    assert w.grad is not None


def test_a_sum_has_the_bits_of_its_chunks(engine: mg.Engine) -> None:
    with mg.Engine("local"):
        w, *xs = leaves(7, (4, 4), *[(4,)] * 7)
        expected = mg.parallel_map(lambda x: (w @ x).sin().sum(), xs, out="sum", chunks=3)
        expected.backward()
        gradient, w.grad = w.grad, None
    found = mg.parallel_map(lambda x: (w @ x).sin().sum(), xs, out="sum", chunks=3)
    found.backward()
    assert bits(found, w.grad) == bits(expected, gradient)


@pytest.mark.parametrize(
    ("chunk_us", "expected"),
    [
        (50.0, [4, 4, 4, 4]),
        (900.0, [4, 4, 2, 2, 2, 2]),
        (2000.0, [4, 4, 2, 2, 1, 1, 1, 1]),
        (4000.0, [2, 2, 2, 2, 2, 2, 1, 1, 1, 1]),
        (50_000.0, [1] * 16),
    ],
)
def test_one_task_runs_several_short_chunks(chunk_us: float, expected: list[int]) -> None:
    """A map of 16 items of 2 ms took 47 ms in 16 tasks a pass, 42 in 8."""
    assert placing.sizes_of_tasks(chunk_us, 16, 2) == expected


def test_all_chunks_have_a_task() -> None:
    for chunks in (1, 2, 3, 7, 100, 128):
        for workers in (1, 2, 3, 16):
            for chunk_us in (1.0, 300.0, 3000.0, 1e6):
                sizes = placing.sizes_of_tasks(chunk_us, chunks, workers)
                assert sum(sizes) == chunks
                assert min(sizes) >= 1
                assert sorted(sizes[:-1], reverse=True) == sizes[:-1]


def test_a_map_is_cut_anew_when_its_times_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [range(at, at + 1) for at in range(16)]
    times: dict[str, float] = {}
    monkeypatch.setattr(placing, "TIMES", times)
    cuts = placing.Cuts()
    found = []
    with mg.Engine("local", cpu_workers=2):
        for took_us in (None, 600.0, 450.0, 850.0, 2000.0):
            if took_us is not None:
                times["f"] = took_us
            found.append([len(one) for one in cuts.tasks("f", chunks)])
    assert found == [
        [1] * 16,
        [4, 4, 3, 3, 2],
        [4, 4, 3, 3, 2],
        [4, 4, 3, 3, 2],
        [4, 4, 2, 2, 1, 1, 1, 1],
    ]


def test_branches_that_one_task_has_recorded_are_differentiated_by_one(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing.CUTS, "tasks", lambda name, chunks: _cut(3, chunks))
    (w,) = leaves(3, (4,))
    outs = mg.parallel_map(lambda k: (w * k).sin().sum(), [0.1 * k for k in range(8)])
    loss, before = mg.stack(outs).sum(), tasks_of_workers(engine)
    loss.backward()
    if engine.mode == "process":
        assert 3 <= tasks_of_workers(engine) - before <= 3 + 2  # and around them
    with mg.Engine("local"):
        expected = mg.stack([(w * (0.1 * k)).sin().sum() for k in range(8)]).sum()
        (gradient,) = mg.autograd.grad(expected, w)
    assert mg.allclose(w.grad, gradient)


def _cut(together: int, chunks: list[range]) -> list[range]:
    starts = range(0, len(chunks), together)
    ends = [min(at + together, len(chunks)) - 1 for at in starts]
    return [range(chunks[at].start, chunks[end].stop) for at, end in zip(starts, ends, strict=True)]


def test_results_do_not_depend_on_how_chunks_are_run(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = mg.tensor([0.1, 0.7], requires_grad=True)

    def item(k: float) -> mg.Tensor:
        return (weight * k).sin().sum()

    found = []
    for together in (1, 5, 40):
        monkeypatch.setattr(placing.CUTS, "tasks", lambda _, chunks, n=together: _cut(n, chunks))
        outs = mg.parallel_map(item, [0.1 * k for k in range(13)])
        total = mg.parallel_map(item, [0.1 * k for k in range(13)], out="sum", chunks=7)
        (gradient,) = mg.autograd.grad(mg.stack(outs).sum() + total, weight)
        found.append([*[out.item() for out in outs], total.item(), *gradient.tolist()])
    assert found[0] == found[1] == found[2]


def test_an_error_of_several_chunks_in_a_task_is_that_of_the_lowest_item(
    engine: mg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing.CUTS, "tasks", lambda name, chunks: _cut(4, chunks))

    def item(k: int) -> int:
        if k in (6, 9):
            raise ValueError(f"no {k}")
        return k

    with pytest.raises(ValueError, match="no 6") as caught:
        mg.parallel_map(item, range(12))
    assert "item 6" in "".join(caught.value.__notes__)


def test_more_items_than_chunks(engine: mg.Engine) -> None:
    (x,) = leaves(8, (2,))
    outs = mg.parallel_map(lambda k: x * k, range(300), chunks=7)
    assert [float(out.detach().numpy()[0]) for out in outs] == [
        float((x.detach() * k).numpy()[0]) for k in range(300)
    ]
    outs[299].sum().backward()
    assert bits(x.grad) == [np.full(2, 299, "f4").tobytes()]


def test_large_results(engine: mg.Engine) -> None:
    for size in (10, 100_000, 5_000_000):  # unknown, larger than known, larger than a message
        (out,) = mg.parallel_map(lambda k: mg.full((size,), k), [2.0])  # noqa: B023
        assert out.numpy().tobytes() == np.full(size, 2.0, "f4").tobytes()


def test_transposed_and_expanded_results(engine: mg.Engine) -> None:
    (x,) = leaves(10, (3, 4))
    a, b = mg.parallel_map(lambda k: ((x * k).t(), (x * k).sum().expand(5)), [2.0])[0]
    assert bits(a, b) == bits((x * 2.0).t(), (x * 2.0).sum().expand(5))
    assert a.stride() == (1, 4)
    a.sum().backward()


# ---------------------------------------------------------------------- arguments


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        mg.parallel_map(branch, [1], [1, 2])
    with pytest.raises(ValueError, match="no items"):
        mg.parallel_map(branch, [], out="sum")
    with pytest.raises(ValueError, match="'list' or 'sum'"):
        mg.parallel_map(branch, [1], out="mean")
    with pytest.raises(ValueError, match="at least 1"):
        mg.parallel_map(branch, [1], chunks=0)
    with pytest.raises(TypeError, match="callable"):
        mg.parallel_map(3, [1])  # type: ignore[arg-type]
    assert mg.parallel_map(branch, []) == []


def test_what_cannot_travel_is_named(engine: mg.Engine) -> None:
    import threading

    class Simulator:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    simulator = Simulator()
    with pytest.raises(TypeError, match=r"simulator\.lock"):
        mg.parallel_map(lambda x: simulator.lock, [1])


def test_shared_keywords(engine: mg.Engine) -> None:
    (x,) = leaves(11, (3,))
    outs = mg.parallel_map(lambda k, *, factor: x * k * factor, [1, 2], shared={"factor": 3.0})
    assert bits(outs[1]) == bits(x * 2 * 3.0)


def test_identity_holds_across_arguments(engine: mg.Engine) -> None:
    missing = object()
    found = mg.parallel_map(
        lambda value, other: (value is missing, other is missing), [missing, 1], shared=(missing,)
    )
    assert found == [(True, True), (False, True)]


# ---------------------------------------------------------------------- modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)
        self.out.bias = self.inner.bias[:1] if False else self.out.bias

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        return self.out(self.norm(self.inner(x).relu())).sum()


def test_a_module_gets_its_gradients(engine: mg.Engine) -> None:
    found = []
    for run in (serial, mg.parallel_map):
        mg.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        outs = run(net, leaves(12, *[(5, 4)] * 4))
        mg.cat([out.sum().reshape(1) for out in outs]).sum().backward()
        found.append(bits(*[p.grad for p in net.parameters()]))
    assert found[0] == found[1]


def test_batch_norm_and_its_backward(engine: mg.Engine) -> None:
    found = []
    for run in (serial, mg.parallel_map):
        mg.manual_seed(4)
        net = Net()
        (out,) = run(net, leaves(13, (6, 4)))
        out.backward()
        found.append(bits(*net.buffers(), *[p.grad for p in net.parameters()]))
        (again,) = run(net, leaves(14, (6, 4)))
        again.backward()
        found[-1] += bits(*net.buffers())
    assert found[0] == found[1]


def test_two_items_that_change_one_buffer(engine: mg.Engine) -> None:
    with pytest.raises(RuntimeError, match="same buffer"):
        mg.parallel_map(Net(), leaves(15, (6, 4), (6, 4)))


def test_two_maps_before_one_backward(engine: mg.Engine) -> None:
    found = []
    for run in (serial, mg.parallel_map):
        mg.manual_seed(5)
        net = Net()
        (first,) = run(net, leaves(16, (6, 4)))
        (second,) = run(net, leaves(17, (6, 4)))
        (first + second).backward()
        found.append(bits(*net.buffers(), *[p.grad for p in net.parameters()]))
    assert found[0] == found[1]


# ---------------------------------------------------------------------- what PyTorch promises


def test_a_saved_argument_that_changes_is_pytorchs_error(engine: mg.Engine) -> None:
    x, w = leaves(18, (3,), (3,))
    (out,) = mg.parallel_map(lambda y: (y * w).sum(), [x])
    with mg.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("size", [3, 100_000])
def test_another_argument_may_change(engine: mg.Engine, size: int) -> None:
    x, bias = leaves(19, (size,), (size,))
    (out,) = mg.parallel_map(lambda y: (y.sin() + bias).sum(), [x])
    with mg.no_grad():
        bias.add_(1)
    out.backward()
    assert bits(x.grad, bias.grad) == bits(x.cos(), mg.ones(size))


def test_data_may_be_replaced(engine: mg.Engine) -> None:
    x, w = leaves(20, (3,), (3,))
    before = w.detach().clone()
    (out,) = mg.parallel_map(lambda y: (y * w).sum(), [x])
    w.data = w.detach() * 2
    out.backward()
    assert bits(x.grad) == bits(before)


def test_no_grad_and_inference_mode(engine: mg.Engine) -> None:
    x, w = leaves(21, (3,), (3,))
    for mode in (mg.no_grad, mg.inference_mode):
        with mode():
            (out,) = mg.parallel_map(lambda y: (y * w).sum(), [x])
        assert not out.requires_grad


def test_a_second_backward(engine: mg.Engine) -> None:
    x, w = leaves(22, (3,), (3,))
    (out,) = mg.parallel_map(lambda y: (y * w).sum(), [x])
    out.backward(retain_graph=True)
    out.backward()
    assert bits(x.grad) == bits(w * 2)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_backward_of_two_results_of_one_call_one_after_the_other(engine: mg.Engine) -> None:
    (x,) = leaves(21, (3,))
    ((first, second),) = mg.parallel_map(lambda y: (y * 2, y * 3), [x])
    first.sum().backward(retain_graph=True)
    second.sum().backward()
    assert bits(x.grad) == bits(mg.full((3,), 5.0))
    with pytest.raises(RuntimeError, match=r"all results of one call of .* are one Node"):
        second.sum().backward()
    assert bits(x.grad) == bits(mg.full((3,), 5.0))


def test_derivatives_of_any_order(engine: mg.Engine) -> None:
    x, w = leaves(23, (3,), (3,))

    def f(x: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
        (out,) = mg.parallel_map(lambda y: (y**3 * w).sum(), [x])
        return out

    (first,) = mg.grad(f(x, w), x, create_graph=True)
    (second,) = mg.grad(first.sum(), x, create_graph=True)
    (third,) = mg.grad(second.sum(), x)
    assert np.allclose(second.detach().numpy(), (6 * x * w).detach().numpy(), rtol=1e-5)
    assert np.allclose(third.numpy(), (6 * w).detach().numpy(), rtol=1e-5)


def test_hooks_run_once_in_the_client(engine: mg.Engine) -> None:
    seen: list[int] = []
    x, w = leaves(24, (3,), (3,))
    w.register_hook(lambda grad: seen.append(1))
    outs = mg.parallel_map(lambda k: (x * w * k).sum(), [1.0, 2.0])
    outs[0].register_hook(lambda grad: grad * 10)
    mg.stack(outs).sum().backward()
    assert seen == [1]
    assert np.allclose(x.grad.numpy(), (w * 12).detach().numpy())  # type: ignore[union-attr]


def test_random_numbers(engine: mg.Engine) -> None:
    def draws(k: int) -> tuple[Any, ...]:
        return mg.rand(2).tolist(), np.random.rand(), random.random()

    def run() -> list[Any]:
        mg.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        found = mg.parallel_map(draws, range(3))
        return [*found, mg.rand(1).tolist(), np.random.rand(), random.random()]

    with mg.Engine("local"):
        expected = run()
    assert run() == expected
    assert len({str(one) for one in expected}) == 6


def test_dropout_is_the_same_when_a_branch_is_made_again(engine: mg.Engine) -> None:
    (x,) = leaves(25, (100,))
    outs = mg.parallel_map(lambda y: nn.functional.dropout(y * y, 0.5).sum(), [x])
    outs[0].backward(retain_graph=True)
    first, x.grad = x.grad, None
    BRANCHES.clear()
    outs[0].backward()
    assert bits(first) == bits(x.grad)


# ---------------------------------------------------------------------- errors


def test_the_lowest_error_counts(engine: mg.Engine) -> None:
    def fails(k: int) -> int:
        if k >= 2:
            raise KeyError(k)
        return k

    with pytest.raises(KeyError) as raised:
        mg.parallel_map(fails, range(6))
    assert raised.value.args == (2,)
    assert any("item 2" in note for note in raised.value.__notes__)


class Ours(Exception):
    pass


def test_the_users_own_exception(engine: mg.Engine) -> None:
    def fails(k: int) -> None:
        raise Ours(k)

    with pytest.raises(Ours):
        mg.parallel_map(fails, [1])


def test_an_error_in_backward(engine: mg.Engine) -> None:
    class Bad(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> mg.Tensor:
            return x.detach() * 2

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            raise Ours("backward")

    (x,) = leaves(26, (3,))
    (out,) = mg.parallel_map(lambda y: Bad.apply(y).sum(), [x])
    with pytest.raises(Ours):
        out.backward()
    assert x.grad is None


class Poison(mg.Function):
    """Its backward raises, or kills its worker."""

    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, signal_number: int) -> Any:
        ctx.signal_number = signal_number
        return x.detach() * 1

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        if ctx.signal_number > 0:
            os.kill(os.getpid(), ctx.signal_number)
        if ctx.signal_number < 0:
            raise ValueError("poison")
        return grad, None


def poisoned(x: mg.Tensor, signal_number: int) -> mg.Tensor:
    return Poison.apply(x, signal_number).sum()


def test_an_error_in_backward_names_the_item(engine: mg.Engine) -> None:
    (x,) = leaves(23, (3,))
    outs = mg.parallel_map(poisoned, [x] * 4, [0, 0, -1, 0])
    with pytest.raises(ValueError, match="poison") as caught:
        mg.stack(outs).sum().backward()
    assert "in the backward of poisoned of item 2" in caught.value.__notes__
    assert x.grad is None


def test_a_backward_that_kills_its_workers_ends_and_names_the_item() -> None:
    (x,) = leaves(24, (3,))
    with mg.Engine("process", cpu_workers=2):
        outs = mg.parallel_map(poisoned, [x] * 4, [0, 0, signal.SIGSEGV, 0])
        with pytest.raises(mg.errors.WorkerLost, match="the backward of poisoned of item 2"):
            mg.stack(outs).sum().backward()
        assert x.grad is None
        mg.stack(mg.parallel_map(poisoned, [x] * 4, [0] * 4)).sum().backward()
        assert bits(x.grad) == bits(mg.full((3,), 4.0))


def test_an_argument_changed_in_place_is_an_error(engine: mg.Engine) -> None:
    plain = mg.zeros(3)
    with pytest.raises(RuntimeError, match="in place"):
        mg.parallel_map(lambda y: y.add_(1), [plain])
    assert plain.tolist() == [0, 0, 0]


def test_a_context_stays_where_it_was_made(engine: mg.Engine) -> None:
    class Holds(mg.Function):
        @staticmethod
        def forward(ctx: Any, x: mg.Tensor) -> Any:
            ctx.solver = (line for line in "abc")  # cannot be pickled
            return x.numpy() * 2

        @staticmethod
        def backward(ctx: Any, grad: mg.Tensor) -> mg.Tensor:
            next(ctx.solver)
            return grad * 2

    (x,) = leaves(27, (3,))
    (out,) = mg.parallel_map(lambda y: Holds.apply(y).sum(), [x])
    out.backward()
    assert bits(x.grad) == [np.full(3, 2, "f4").tobytes()]


# ---------------------------------------------------------------------- nothing stays


def test_branches_go_with_their_nodes(engine: mg.Engine) -> None:
    (x,) = leaves(28, (3,))
    gc.collect()
    before = len(BRANCHES)
    for _ in range(3):
        outs = mg.parallel_map(lambda k: (x * k).exp().sum(), [1.0, 2.0])
        mg.stack(outs).sum().backward()
    del outs
    gc.collect()
    assert len(BRANCHES) == before


def test_a_sum_inside_a_branch_names_its_function(engine: mg.Engine) -> None:
    def unequal(length: int) -> mg.Tensor:
        return mg.ones(length)

    def branch(_: int) -> mg.Tensor:
        return mg.parallel_map(unequal, [1, 2], out="sum")

    with pytest.raises(TypeError, match=r"unequal"):
        mg.parallel_map(branch, [0])


def test_a_map_inside_a_branch(engine: mg.Engine) -> None:
    x, w = leaves(29, (3,), (3,))

    def outer(k: float) -> mg.Tensor:
        return mg.stack(mg.parallel_map(lambda j: (x * w * k * j).sum(), [1.0, 2.0])).sum()

    outs = mg.parallel_map(outer, [1.0, 2.0])
    mg.stack(outs).sum().backward()
    assert np.allclose(x.grad.numpy(), (w * 9).detach().numpy())  # type: ignore[union-attr]


def test_a_map_in_a_hook(engine: mg.Engine) -> None:
    (x,) = leaves(30, (3,))
    y = x * 2
    y.register_hook(lambda grad: mg.parallel_map(lambda k: grad * k, [3.0])[0])
    y.sum().backward()
    assert bits(x.grad) == [np.full(3, 6, "f4").tobytes()]


# ---------------------------------------------------------------------- what would be lost


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.cache: dict[int, int] = {}
        self.rng = np.random.default_rng(0)


def test_a_changed_attribute_is_an_error(engine: mg.Engine) -> None:
    counter = Counter()

    def counts(k: int) -> int:
        counter.count += 1
        return k

    with pytest.raises(RuntimeError, match=r"`counter\.count`.*lost"):
        mg.parallel_map(counts, range(3))


def test_an_appended_list_is_an_error(engine: mg.Engine) -> None:
    seen: list[int] = []
    with pytest.raises(RuntimeError, match=r"`seen.*lost"):
        mg.parallel_map(lambda k: seen.append(k), range(3))


def test_a_shared_generator_is_an_error(engine: mg.Engine) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RuntimeError, match=r"`rng`.*spawn"):
        mg.parallel_map(lambda k: rng.random(), range(3))


def test_a_modules_own_attribute_is_an_error(engine: mg.Engine) -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: mg.Tensor) -> mg.Tensor:
            self.aux_loss = self.inner(x).sum()
            return x * self.aux_loss

    with pytest.raises(RuntimeError, match=r"aux_loss`.*lost"):
        mg.parallel_map(Gate(), leaves(40, (2, 3)))


def test_what_may_change_is_named(engine: mg.Engine) -> None:
    counter = Counter()

    def caches(k: int) -> int:
        counter.cache[k] = k
        return k

    assert mg.parallel_map(caches, range(3), changes=("cache",)) == [0, 1, 2]


def test_backward_inside_is_an_error(engine: mg.Engine) -> None:
    (w,) = leaves(41, (3,))
    with pytest.raises(RuntimeError, match=r"mg\.grad"):
        mg.parallel_map(lambda k: (w * k).sum().backward(), [1.0])
    outs = mg.parallel_map(lambda k: mg.grad((w * k).sum(), w)[0], [2.0])
    assert bits(outs[0]) == bits(mg.full((3,), 2.0))


# ---------------------------------------------------------------------- Function.map


class Triple(mg.Function):
    @staticmethod
    def forward(ctx: Any, x: mg.Tensor, k: int) -> Any:
        ctx.k = k
        return x.numpy() * k

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> Any:
        return grad * ctx.k, None


def test_function_map(engine: mg.Engine) -> None:
    found = []
    for run in (lambda xs: [Triple.apply(x, 3) for x in xs], lambda xs: Triple.map(xs, [3] * 4)):
        xs = leaves(42, *[(3,)] * 4)
        outs = run(xs)
        assert outs[0].grad_fn is not None
        names = outs[0].grad_fn.name(), [edge[0].name() for edge in outs[0].grad_fn.next_functions]
        mg.stack(outs).sum().backward()
        found.append((names, bits(*outs, *[x.grad for x in xs])))
    assert found[0] == found[1]
    assert found[0][0] == ("TripleBackward", ["torch::autograd::AccumulateGrad"])


# ---------------------------------------------------------------------- Modules side by side


def test_data_parallel_is_its_parts(engine: mg.Engine) -> None:
    found = []
    for parts in (True, False):
        mg.manual_seed(7)
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        (x,) = leaves(50, (10, 4))
        model = nn.DataParallel(net, parts=5)
        assert next(iter(model.state_dict())) == "module.0.weight"
        out = model(x) if parts else mg.cat([net(x[k : k + 2]) for k in range(0, 10, 2)])
        out.sum().backward()
        found.append(bits(out, x.grad, *[p.grad for p in net.parameters()]))
    assert found[0] == found[1]


def test_data_parallel_keeps_the_buffers_of_part_0(engine: mg.Engine) -> None:
    found = []
    for parts in (True, False):
        mg.manual_seed(8)
        net = nn.BatchNorm1d(4)
        (x,) = leaves(51, (8, 4))
        (nn.DataParallel(net, parts=2) if parts else net)(x if parts else x[:4])
        found.append(bits(*net.buffers()))
    assert found[0] == found[1]


def test_data_parallel_loses_no_rows(engine: mg.Engine) -> None:
    class Scales(nn.Module):
        def forward(self, x: mg.Tensor, factors: mg.Tensor) -> mg.Tensor:
            return x * factors

    model = nn.DataParallel(Scales(), parts=4)
    with pytest.raises(ValueError, match="have 8, 3 rows, which gives 4, 3 parts"):
        model(mg.ones(8, 3), mg.ones(3))
    assert model(mg.ones(8, 3), mg.ones(8, 1)).shape == (8, 3)
    assert model(mg.ones(0, 3), mg.ones(0, 1)).shape == (0, 3)


def test_parallel_modules(engine: mg.Engine) -> None:
    mg.manual_seed(9)
    experts = [nn.Linear(3, 2) for _ in range(3)]
    (x,) = leaves(52, (4, 3))
    outs = nn.Parallel(*experts)(x)
    assert bits(*outs) == bits(*[expert(x) for expert in experts])
    mg.cat(outs).sum().backward()
    assert all(p.grad is not None for expert in experts for p in expert.parameters())


# ---------------------------------------------------------------------- an initializer

SIMULATOR: Any = None


class Simulator:
    """Cannot travel."""

    def __init__(self, start: int) -> None:
        self.pid, self.value = os.getpid(), start
        self.line = (number for number in range(start, start + 1000))


def make_simulator(start: int) -> None:
    global SIMULATOR
    SIMULATOR = Simulator(start)


def asks_the_simulator(k: int) -> tuple[int, int, int]:
    return os.getpid(), SIMULATOR.pid, SIMULATOR.value + k


@pytest.mark.parametrize("mode", ["local", "process"])
def test_an_initializer_runs_once_in_each_process(mode: str) -> None:
    with mg.Engine(mode, cpu_workers=2, initializer=make_simulator, initargs=(7,)) as engine:
        for _ in range(2):
            found = mg.parallel_map(asks_the_simulator, range(4))
            assert [value for _, _, value in found] == [7, 8, 9, 10]
            assert all(pid == own for pid, own, _ in found)
        if mode == "process":
            os.kill(engine.worker_pids()[0], signal.SIGKILL)
            found = mg.parallel_map(asks_the_simulator, range(4))
            assert all(pid == own for pid, own, _ in found)


def test_an_initializer_that_raises() -> None:
    with mg.Engine("process", cpu_workers=1, initializer=divmod, initargs=(1, 0)):
        with pytest.raises(ZeroDivisionError) as raised:
            mg.parallel_map(abs, [1])
        assert any("initializer" in note for note in raised.value.__notes__)
    with pytest.raises(TypeError, match="callable"):
        mg.Engine("local", initializer=3)  # type: ignore[arg-type]


def test_small_arguments_are_kept_as_they_were_large_ones_are_named(engine: mg.Engine) -> None:
    """256 KiB together for each call. A branch that has to be made again needs them."""
    biases = [one.detach() for one in leaves(60, *[(30_000,)] * 4)]
    (x,) = leaves(61, (30_000,))

    def adds(y: mg.Tensor, *others: mg.Tensor) -> mg.Tensor:
        return sum((one for one in others), y.sin()).sum()  # type: ignore[return-value]

    for changed, is_kept in ((0, True), (1, True), (2, False), (3, False)):
        with mg.Engine("local"):
            (out,) = mg.parallel_map(adds, [x], shared=biases)
            biases[changed].add_(1)
            BRANCHES.clear()
            if is_kept:
                out.backward()
            else:
                with pytest.raises(RuntimeError, match=r"branch of .*adds has to be made again"):
                    out.backward()
    assert bits(x.grad) == bits(x.cos() * 2)


# ---------------------------------------------------------------------- many items


class Packed:
    """Runs ``when_packed`` when it is first packed."""

    def __init__(self, when_packed: Callable[[], object]) -> None:
        self.when_packed: Callable[[], object] | None = when_packed

    def __reduce__(self) -> Any:
        run, self.when_packed = self.when_packed, None
        if run is not None:
            run()
        return str, ()


@pytest.mark.parametrize("out", ["list", "sum"])
def test_calls_begin_before_the_last_items_are_packed(out: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def begins(item: Any) -> int:
        begun.touch()
        return 1

    with mg.Engine("process", cpu_workers=1):
        has_begun: list[bool] = []
        last = Packed(lambda: has_begun.append(wait_until(begun.exists)))
        found = mg.parallel_map(begins, [*range(20), last], out=out)
        assert found == (21 if out == "sum" else [1] * 21)
        assert has_begun == [True]


def test_an_item_that_cannot_be_packed_ends_the_calls_before_it(engine: mg.Engine) -> None:
    items = [*range(200), threading.Lock()]
    with pytest.raises(TypeError, match=r"argument 0 of item 200"):
        mg.parallel_map(lambda k: k, items)
    assert mg.parallel_map(lambda k: k, [1, 2]) == [1, 2]


def test_ctrl_c_while_items_are_packed(engine: mg.Engine) -> None:
    items = [*range(40), Packed(lambda: signal.raise_signal(signal.SIGINT)), *range(400)]
    with pytest.raises(KeyboardInterrupt):
        mg.parallel_map(lambda k: k, items)
    assert mg.parallel_map(lambda k: k, [1, 2]) == [1, 2]


class Scaled(mg.Function):
    """Its edges are those of a branch: none for the first argument."""

    @staticmethod
    def forward(ctx: Any, factor: float, x: mg.Tensor) -> mg.Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: mg.Tensor) -> tuple[None, mg.Tensor]:
        return None, grad * ctx.factor


def test_the_graph_of_a_map_is_not_taken_for_that_of_a_loop() -> None:
    """Each branch has a task of its own, in the worker that has recorded it."""
    xs = leaves(9, *[(3,)] * 16)
    with mg.Engine("local"):
        for _ in range(12):  # until it is known how short they are
            mg.stack([Scaled.apply(2.0, x) for x in xs]).sum().backward()
    with mg.Engine("process", cpu_workers=2) as engine:
        outs = Scaled.map([2.0] * len(xs), xs)
        before = sum(engine.statistics().tasks.values())
        mg.stack(outs).sum().backward()
        assert sum(engine.statistics().tasks.values()) - before >= len(xs)
    looped = Scaled.apply(2.0, xs[0])
    assert isinstance(outs[0].grad_fn, type(looped.grad_fn))
    assert outs[0].grad_fn.name() == looped.grad_fn.name()


@pytest.mark.parametrize("of_leaf", [True, False])
def test_create_graph_runs_hooks_of_the_caller_once(engine: mg.Engine, of_leaf: bool) -> None:
    """It was so: they ran for the gradients of each call, and again for their sum."""
    (x,) = leaves(31, (3,))
    parameter = mg.nn.Parameter(mg.tensor([1.0, 2.0, 3.0]))
    used = parameter if of_leaf else parameter * 1.5
    seen = []
    used.register_hook(lambda grad: seen.append(1) or grad * 2.0)
    found = []
    for run in (
        lambda: [(x * used**2).sum() for _ in range(3)],
        lambda: mg.parallel_map(lambda y, w: (y * w**2).sum(), [x] * 3, shared=(used,)),
    ):
        seen.clear()
        (first,) = mg.grad(mg.stack(run()).sum(), parameter, create_graph=True)
        assert seen == [1]
        (second,) = mg.grad(first.sum(), parameter)
        found.append((first.tolist(), second.tolist()))
    assert found[0] == found[1]
