"""Memory of a long run: the client, the workers and both arenas stay as they are."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mpgrad as mg  # noqa: E402
import mpgrad.torch as mt  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.torch, pytest.mark.slow]

#: The steps, and after how many of them the sizes count.
STEPS, WARM_UP = 1000, 200
#: KiB by which a process may have grown: allocators keep what they have had once.
GROWTH_KIB = 6144


class Half(torch.autograd.Function):
    """One that ``parallelize`` has taken."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x / 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad / 2


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_memory_is_flat_over_a_thousand_steps(workers: int) -> None:
    """Maps, forks, a parallelized Function, a graph that nobody differentiates, in each step."""
    mt.parallelize(Half)
    with mg.Engine("process" if workers else "local", cpu_workers=workers or 1) as engine:
        model = torch.nn.Sequential(
            torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 1)
        )
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            xs = list(torch.randn(4, 200, 40))
            losses = mt.parallel_map(lambda x: model(x).square().mean(), xs)
            future = mt.fork(lambda x: model(x).mean(), xs[0])
            mt.parallel_map(lambda x: model(x).mean(), xs[:1])  # nobody differentiates it
            optimizer.zero_grad()
            (torch.stack(losses).mean() + Half.apply(mt.wait(future))).backward()
            optimizer.step()

        def sizes() -> list[int]:
            gc.collect()
            pids = [os.getpid(), *engine.worker_pids()]
            return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4 for pid in pids]

        def blocks() -> list[int]:
            found = engine.statistics()
            arenas = [one for one in (found.engine_arena, found.client_arena) if one is not None]
            return [one.live_blocks for one in arenas]

        for _ in range(WARM_UP):
            step()
        before, held = sizes(), blocks()
        for _ in range(STEPS - WARM_UP):
            step()
        grown = [after - kib for after, kib in zip(sizes(), before, strict=True)]
        assert all(kib < GROWTH_KIB for kib in grown), grown
        assert all(now <= then + 8 for now, then in zip(blocks(), held, strict=True))
