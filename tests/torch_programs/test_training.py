"""A training loop with all that such loops have, beside the same one in plain torch; deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def serial(fn: Callable[..., Any], *iterables: Any, shared: Any = ()) -> list[Any]:
    return [fn(*item, *shared) for item in zip(*iterables, strict=True)]


def train(run: Callable[..., Any], path: Path) -> list[Any]:
    """bfloat16, a scaler, accumulation over two batches, clipping, schedulers, an average of the
    parameters, a checkpoint and resume."""

    def made() -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
        decay = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [2])
        average = torch.optim.swa_utils.AveragedModel(model)
        return model, optimizer, scheduler, average, torch.amp.GradScaler("cpu", init_scale=256.0)

    def item_loss(x: Any, y: Any, model: Any) -> Any:
        return (model(x).float() - y).square().mean()

    parts, losses = made(), []
    data = torch.Generator().manual_seed(1)
    for step in range(6):
        if step == 3:
            torch.save([one.state_dict() for one in parts], path)
            parts = made()
            for one, state in zip(parts, torch.load(path, weights_only=False), strict=True):
                one.load_state_dict(state)
        model, optimizer, scheduler, average, scaler = parts
        for _ in range(2):
            xs = list(torch.randn(3, 8, 16, generator=data))
            ys = [x[:, :1].sin() for x in xs]
            # Without the cache, in which plain torch adds the gradients of all items in bfloat16.
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                loss = torch.stack(run(item_loss, xs, ys, shared=(model,))).mean() / 2
            scaler.scale(loss).backward()
            losses.append(loss.item())
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
        optimizer.zero_grad()
        losses.append(norm.item())
    return [losses, *[one.tolist() for one in (*model.parameters(), *average.parameters())]]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_a_training_loop_has_the_numbers_of_plain_torch(workers: int, tmp_path: Path) -> None:
    expected = train(serial, tmp_path / "plain")
    with mg.Engine("process" if workers else "local", cpu_workers=workers or 1):
        assert train(mt.parallel_map, tmp_path / "ours") == expected


class DiesOnce(torch.autograd.Function):
    """Ends its process the first time, in forward or in backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, path: str, where: str) -> Any:
        ctx.save_for_backward(x)
        ctx.place = path, where
        _die_once(path, where, "forward")
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _die_once(*ctx.place, "backward")
        return 2 * grad * ctx.saved_tensors[0], None, None


def _die_once(path: str, where: str, here: str) -> None:
    if where == here and not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_worker_dies_in_a_pass(workers: int, where: str, tmp_path: Path) -> None:
    def run(path: str, place: str) -> list[Any]:
        torch.manual_seed(2)
        w = torch.linspace(0, 1, 6).requires_grad_()
        xs = [torch.full((6,), float(k)) for k in range(4)]

        def branch(x: Any) -> Any:
            mixed = torch.nn.functional.dropout(w * x, 0.5)
            return DiesOnce.apply(mixed, path, place).sum()

        outs = mt.parallel_map(branch, xs)
        torch.stack(outs).sum().backward()
        return [[out.item() for out in outs], w.grad.tolist()]

    with mg.Engine("process", cpu_workers=workers):
        expected = run("", "nowhere")
        assert run(str(tmp_path / "died"), where) == expected
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_die_before_a_second_derivative(workers: int) -> None:
    with mg.Engine("process", cpu_workers=workers) as engine:
        x = torch.tensor([0.5, 2.0], requires_grad=True)
        (out,) = mt.parallel_map(lambda y: (y**3).sum(), [x])
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        for pid in engine.worker_pids():
            os.kill(pid, signal.SIGKILL)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert torch.allclose(second, 6 * x)
