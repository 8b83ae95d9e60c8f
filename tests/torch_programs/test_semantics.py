"""The table of semantics in docs/torch.md: each row beside plain torch, wherever branches run.

Rows that need more than a comparison stand in the files beside this one.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402
from mpgrad.engine.submitter import Submitter  # noqa: E402
from tests.leftovers import wait_until  # noqa: E402
from tests.torch_programs.test_both_passes import (  # noqa: E402
    bits,
    engine,
    every_test_is_watched,
    leaves,
    net,
    serial,
)

__all__ = ["engine", "every_test_is_watched"]
pytestmark = [pytest.mark.process, pytest.mark.torch]


def forks(fn: Callable[..., Any], *iterables: Any, shared: Any = ()) -> list[Any]:
    """All under way at once."""
    items = zip(*iterables, strict=True)
    return [mt.wait(one) for one in [mt.fork(fn, *item, *shared) for item in items]]


def one_by_one(fn: Callable[..., Any], *iterables: Any, shared: Any = ()) -> list[Any]:
    """Each is waited for before the next one begins."""
    items = zip(*iterables, strict=True)
    return [mt.wait(mt.fork(fn, *item, *shared)) for item in items]


def same_in_all(program: Callable[[Callable[..., Any]], list[Any]]) -> None:
    """The program gives the same with the loop, with parallel_map and with forks."""
    expected = program(serial)
    for run in (mt.parallel_map, forks, one_by_one):
        assert program(run) == expected


# ---------------------------------------------------------------------- sums and orders


def test_the_order_of_the_sum_of_a_shared_parameter(engine: mg.Engine) -> None:
    """Numbers of different size, so that another order would give other bits."""

    def program(run: Any) -> list[Any]:
        w, *xs = leaves(0, (64,), *[(64,)] * 7)
        scales = [10.0 ** (k % 5 - 2) for k in range(7)]
        outs = run(lambda x, scale: (w * x).sin().sum() * scale, xs, scales)
        torch.stack(outs).sum().backward()
        return bits(w.grad, *[x.grad for x in xs])

    same_in_all(program)


def test_a_parameter_that_an_item_uses_twice(engine: mg.Engine) -> None:
    """Its sum is grouped by items: the same bits wherever they run, but not those of a loop."""

    def run() -> list[Any]:
        w, *xs = leaves(1, (64, 64), *[(64,)] * 5)
        outs = mt.parallel_map(lambda x: (w @ (w @ x).tanh()).sum(), xs)
        torch.stack(outs).sum().backward()
        assert torch.allclose(w.grad, _plainly(xs, w), rtol=1e-4, atol=1e-5)
        return bits(w.grad)

    def _plainly(xs: Any, w: Any) -> Any:
        total = sum((w @ (w @ x.detach()).tanh()).sum() for x in xs)
        return torch.autograd.grad(total, w)[0]

    with mg.Engine("local"):
        expected = run()
    assert run() == expected


def test_gradients_accumulate_over_backwards(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        w, *xs = leaves(2, (8,), *[(8,)] * 3)
        for _ in range(3):
            torch.stack(run(lambda x: (w * x).exp().sum(), xs)).sum().backward()
        return bits(w.grad, *[x.grad for x in xs])

    same_in_all(program)


def test_grad_of_what_lies_inside_arguments(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        a, b, c = leaves(3, (4,), (4,), (4,))
        deep = {"list": [a, {"b": b}], "unused": c}
        outs = run(
            lambda d, k: (d["list"][0] * d["list"][1]["b"]).sum() * k, [deep] * 2, [1.0, 2.0]
        )
        found = torch.autograd.grad(outs[1], [a, b, c], allow_unused=True)
        assert found[2] is None
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad(outs[0], [a, c])
        return bits(*found)

    same_in_all(program)


def test_a_result_that_nobody_uses(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        (x,) = leaves(4, (4,))
        ((one, _, none),) = run(lambda y: (y.sin(), y.cos(), y.detach() * 2), [x])
        one.sum().backward()
        return [*bits(x.grad), none.requires_grad]

    same_in_all(program)


def test_gradients_of_low_precision(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(5)
        found = []
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64):
            x = torch.randn(6, generator=generator).to(dtype).requires_grad_()
            (out,) = run(lambda y: (y * y).sum().abs(), [x])
            out.backward()
            found += bits(x.grad)
        return found

    same_in_all(program)


# ---------------------------------------------------------------------- hooks, anomalies


def test_hooks_of_every_kind(engine: mg.Engine) -> None:
    """On an input, on a result, on a parameter before and after it accumulates."""

    def program(run: Any) -> list[Any]:
        seen: list[Any] = []
        w, *xs = leaves(6, (4,), *[(4,)] * 3)
        middle = [x * 2 for x in xs]
        middle[0].register_hook(lambda grad: grad * 3)
        middle[1].retain_grad()
        w.register_hook(lambda grad: seen.append(bits(grad)))
        w.register_post_accumulate_grad_hook(lambda p: seen.append(bits(p.grad)))
        outs = run(lambda x: (w * x).sin().sum(), middle)
        outs[2].register_hook(lambda grad: grad * 10)
        outs[2].retain_grad()
        torch.stack(outs).sum().backward()
        return [*bits(w.grad, *[x.grad for x in xs], middle[1].grad, outs[2].grad), *seen]

    same_in_all(program)


def test_anomaly_mode_finds_a_branch_that_gives_nan(engine: mg.Engine) -> None:
    for run in (serial, mt.parallel_map, forks):
        (x,) = leaves(7, (3,))
        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
            warnings.simplefilter("ignore")
            (out,) = run(lambda y: (y * 0).sqrt().sum(), [x])
            with pytest.raises(RuntimeError, match="returned nan values"):
                out.backward()
        assert x.grad is None


def test_callbacks_of_the_engine(engine: mg.Engine) -> None:
    """What DistributedDataParallel uses: it is called once, when the backward has ended."""

    def program(run: Any) -> list[Any]:
        called: list[bool] = []
        x, w = leaves(8, (3,), (3,))

        def hook(grad: Any) -> None:
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: called.append(w.grad is not None)
            )

        outs = run(lambda y: (y * w).sum(), [x])
        outs[0].register_hook(hook)
        outs[0].backward()
        return [*called, *bits(x.grad, w.grad)]

    same_in_all(program)


# ---------------------------------------------------------------------- derivatives


def test_derivatives_of_all_orders_are_those_of_torch(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        x, w = leaves(9, (4,), (4,))
        total = torch.stack(run(lambda y, k: (y**3 * w).sum() * k, [x] * 2, [1.0, 2.0])).sum()
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        third = torch.autograd.grad(second.sum(), [x, w])
        return bits(first, second, *third)

    same_in_all(program)


def test_a_penalty_on_the_gradient(engine: mg.Engine) -> None:
    """As in a WGAN-GP: the loss has a gradient in it."""

    def program(run: Any) -> list[Any]:
        model, xs = net(), leaves(10, *[(5, 4)] * 2)
        outs = run(lambda x, model: model(x).sum(), xs, shared=(model,))
        found = torch.autograd.grad(sum(outs), xs, create_graph=True)
        (sum(outs) + sum((g.norm() - 1) ** 2 for g in found)).backward()
        return [p.grad.tolist() for p in model.parameters()]

    expected = program(serial)
    for run in (mt.parallel_map, forks):
        for one, other in zip(program(run), expected, strict=True):
            assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacrev])
def test_torch_func_around_a_map_is_an_error(engine: mg.Engine, transform: Any) -> None:
    def around(x: Any) -> Any:
        return mt.parallel_map(lambda y: y.square().sum(), [x])[0]

    with pytest.raises(TypeError, match=r"torch\.func"):
        transform(around)(torch.ones(3))


def test_a_nested_tensor_is_refused(engine: mg.Engine) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(TypeError, match="unbind"):
        mt.parallel_map(lambda x: x, [nested])


# ---------------------------------------------------------------------- Modules


def test_batch_norm_in_evaluation(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        model = torch.nn.Sequential(net(), torch.nn.BatchNorm1d(1)).eval()
        torch.stack(
            run(lambda x: model(x).square().sum(), leaves(11, *[(6, 4)] * 3))
        ).sum().backward()
        return bits(*model.buffers(), *[p.grad for p in model.parameters()])

    same_in_all(program)


def test_a_recurrent_network(engine: mg.Engine) -> None:
    def program(run: Any) -> list[Any]:
        torch.manual_seed(2)
        lstm = torch.nn.LSTM(4, 8, batch_first=True)
        outs = run(
            lambda x, lstm: lstm(x)[0][:, -1].sum(), leaves(12, *[(3, 5, 4)] * 2), shared=(lstm,)
        )
        torch.stack(outs).sum().backward()
        return [p.grad.tolist() for p in lstm.parameters()]

    expected = program(serial)
    for run in (mt.parallel_map, forks):
        for one, other in zip(program(run), expected, strict=True):
            assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- deaths


class Fragile(torch.autograd.Function):
    """One pass of it ends its process, the first time; not that of the program itself."""

    @staticmethod
    def forward(ctx: Any, x: Any, path: str, dies_in: str, client: int) -> Any:
        ctx.save_for_backward(x)
        ctx.told = path, dies_in, client
        _die(path, dies_in == "forward", client)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        path, dies_in, client = ctx.told
        _die(path, dies_in == "backward", client)
        return grad * ctx.saved_tensors[0].cos(), None, None, None


def _die(path: str, is_due: bool, client: int) -> None:
    if is_due and os.getpid() != client and not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("dies_in", ["forward", "backward"])
def test_a_worker_dies_in_a_pass(engine: mg.Engine, dies_in: str, tmp_path: Path) -> None:
    """With random numbers inside, which are the same when the branch is made again."""

    def run(path: Path) -> list[Any]:
        torch.manual_seed(4)
        w, *xs = leaves(13, (50,), *[(50,)] * 4)
        told = str(path), dies_in, os.getpid()
        outs = mt.parallel_map(
            lambda x: torch.nn.functional.dropout(Fragile.apply(x * w, *told), 0.5).sum(), xs
        )
        torch.stack(outs).sum().backward()
        return bits(*outs, w.grad, *[x.grad for x in xs])

    dies = tmp_path / "dies"
    lives = tmp_path / "lives"
    lives.touch()
    assert run(dies) == run(lives)
    assert dies.exists() is bool(engine.worker_pids())


def _kill_workers(engine: mg.Engine) -> None:
    for pid in engine.worker_pids():
        os.kill(pid, signal.SIGKILL)


def test_workers_die_between_the_passes(engine: mg.Engine) -> None:
    def run(is_killed: bool) -> list[Any]:
        torch.manual_seed(5)
        w, *xs = leaves(14, (50,), *[(50,)] * 4)
        outs = mt.parallel_map(lambda x: torch.nn.functional.dropout(x * w, 0.5).exp().sum(), xs)
        if is_killed:
            _kill_workers(engine)
        torch.stack(outs).sum().backward()
        return bits(*outs, w.grad)

    assert run(True) == run(False)


def test_workers_die_before_a_second_derivative(engine: mg.Engine) -> None:
    def run(is_killed: bool) -> list[Any]:
        torch.manual_seed(6)
        x, w = leaves(15, (50,), (50,))
        (out,) = mt.parallel_map(lambda y: torch.nn.functional.dropout(y**3 * w, 0.5).sum(), [x])
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        if is_killed:
            _kill_workers(engine)
        return bits(first, *torch.autograd.grad(first.sum(), [x, w]))

    assert run(True) == run(False)


def test_workers_die_between_two_backwards(engine: mg.Engine) -> None:
    x, w = leaves(16, (50,), (50,))
    (out,) = mt.parallel_map(lambda y: (y * w).sin().sum(), [x])
    out.backward(retain_graph=True)
    once = x.grad.clone()
    _kill_workers(engine)
    out.backward()
    assert bits(x.grad) == bits(once * 2)


# ---------------------------------------------------------------------- Ctrl-C


class Waits(torch.autograd.Function):
    """One pass of it interrupts the program, and waits for the end, the first time."""

    @staticmethod
    def forward(ctx: Any, x: Any, path: str, waits_in: str, client: int) -> Any:
        ctx.told = path, waits_in, client
        _interrupt(path, waits_in == "forward", client)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        path, waits_in, client = ctx.told
        _interrupt(path, waits_in == "backward", client)
        return grad * 2, None, None, None


def _interrupt(path: str, is_due: bool, client: int) -> None:
    if is_due and not os.path.exists(path):
        open(path, "w").close()
        os.kill(client, signal.SIGINT)
        while os.getpid() != client:
            signal.pause()


@pytest.mark.parametrize("waits_in", ["forward", "backward"])
def test_ctrl_c(engine: mg.Engine, waits_in: str, tmp_path: Path) -> None:
    told = str(tmp_path / "told"), waits_in, os.getpid()
    (x,) = leaves(17, (4,))

    def step() -> None:
        outs = mt.parallel_map(lambda k: (Waits.apply(x, *told) * k).sum(), [1.0, 2.0])
        torch.stack(outs).sum().backward()

    with pytest.raises(KeyboardInterrupt):
        step()
    assert x.grad is None
    step()
    assert bits(x.grad) == bits(torch.full((4,), 6.0))


class Sleeps(torch.autograd.Function):
    """The first backward of each branch in a worker never ends."""

    @staticmethod
    def forward(ctx: Any, x: Any, path: str, client: int) -> Any:
        ctx.told = path, client
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        path, client = ctx.told
        if os.getpid() != client and not os.path.exists(path):
            Path(path + ".begun").touch()
            while True:
                signal.pause()
        return grad * 2, None, None


def test_ctrl_c_before_a_branch_is_known_to_be_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before submit() has returned. The worker is free for the next step."""
    path, real = tmp_path / "over", Submitter.submit
    (x,) = leaves(18, (4,))

    def submit(self: Submitter, submission: Any) -> None:
        real(self, submission)
        if not path.exists():
            assert wait_until(path.with_suffix(".begun").exists)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Submitter, "submit", submit)
    told = str(path), os.getpid()
    with mg.Engine("process", cpu_workers=1):
        loss = mt.parallel_map(lambda k: (Sleeps.apply(x, *told) * k).sum(), [1.0])[0]
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
        path.touch()
        assert mt.wait(mt.fork(abs, -1)) == 1
        mt.parallel_map(lambda k: (Sleeps.apply(x, *told) * k).sum(), [1.0])[0].backward()
    assert bits(x.grad) == bits(torch.full((4,), 2.0))


def test_ctrl_c_between_two_nodes(tmp_path: Path) -> None:
    """Nobody has asked for the branch that was begun before; the next call finds a free worker."""
    path = tmp_path / "over"
    (x,) = leaves(18, (4,))
    told, seen = (str(path), os.getpid()), list[int]()

    def interrupt(_: Any) -> None:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with mg.Engine("process", cpu_workers=1):
        outs = mt.parallel_map(lambda k: (Sleeps.apply(x, *told) * k).sum(), [1.0, 2.0])
        for out in outs:
            out.register_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            torch.stack(outs).sum().backward()
        assert wait_until(path.with_suffix(".begun").exists)
        path.touch()
        outs = mt.parallel_map(lambda k: (Sleeps.apply(x, *told) * k).sum(), [1.0, 2.0])
        torch.stack(outs).sum().backward()
    assert bits(x.grad) == bits(torch.full((4,), 6.0))


def test_sparse_gradients(engine: mg.Engine) -> None:
    """It was so: an error in process mode alone, about memory that a tensor does not have."""
    items = [torch.tensor([0, 2, 2]), torch.tensor([4, 0])]

    def trained(mapped: Any) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        table = torch.nn.Embedding(5, 2, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            torch.stack(mapped(lambda at, table: table(at).square().sum(), table)).sum().backward()
            optimizer.step()
        assert table.weight.grad is not None
        return table.weight.detach(), table.weight.grad

    expected, grad = trained(lambda fn, table: [fn(at, table) for at in items])
    found, own = trained(lambda fn, table: mt.parallel_map(fn, items, shared=(table,)))
    assert torch.equal(found, expected)
    assert (own.layout, own._nnz()) == (torch.sparse_coo, grad._nnz())
    total = mt.parallel_map(lambda at, w: w.gather(0, at[:, None], sparse_grad=True).sum(), items,
                            shared=(grad.to_dense().requires_grad_(),), out="sum")  # fmt: skip
    total.backward()
