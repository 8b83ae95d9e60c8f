"""An LSTM, a transformer block and a U-Net beside torch, which has to be installed.

    python -m benchmarks.probes.layers [STEPS]

One forward and one backward in float32, with torch on one and two threads, ``local`` and
``process`` with two workers, in turns; each contender has its own process. Medians in milliseconds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONTENDERS = ("torch 1", "torch 2", "local", "process")
#: Steps before the first one that counts: by then a graph is planned with the costs of its Nodes.
WARM_STEPS = 6
STEPS = 20

#: A program: from the library to its parameters and a step's loss.
Program = Callable[[Any], tuple[list[Any], Callable[[], Any]]]


def lstm(lib: Any) -> tuple[list[Any], Callable[[], Any]]:
    """Two layers both ways: 256 wide, 32 steps, batch 32."""
    net = lib.nn.LSTM(128, 256, num_layers=2, bidirectional=True)
    x = lib.randn(32, 32, 128)
    return list(net.parameters()), lambda: net(x)[0].square().mean()


def transformer_block(lib: Any) -> tuple[list[Any], Callable[[], Any]]:
    """An encoder layer: 256 wide, 8 heads, 64 tokens, batch 16."""
    net = lib.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    x = lib.randn(16, 64, 256)
    return list(net.parameters()), lambda: net(x).square().mean()


def u_net(lib: Any) -> tuple[list[Any], Callable[[], Any]]:
    """Three levels, 16 to 64 channels, pictures of 64 x 64, batch 8."""
    nn = lib.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return self.net(x)

    down = [Block(3, 16), Block(16, 32), Block(32, 64)]
    up = [Block(64 + 32, 32), Block(32 + 16, 16)]
    last, pool, wider = nn.Conv2d(16, 1, 1), nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
    parameters = [p for module in [*down, *up, last] for p in module.parameters()]
    x = lib.randn(8, 3, 64, 64)

    def loss() -> Any:
        one = down[0](x)
        two = down[1](pool(one))
        three = down[2](pool(two))
        two = up[0](lib.cat([wider(three), two], 1))
        return last(up[1](lib.cat([wider(two), one], 1))).square().mean()

    return parameters, loss


PROGRAMS: dict[str, Program] = {
    "LSTM": lstm,
    "transformer block": transformer_block,
    "U-Net": u_net,
}


def serve(program: str, contender: str) -> None:
    """For each line on stdin run a step; print the seconds of forward and of backward."""
    if contender.startswith("torch"):
        import torch as lib

        lib.set_num_threads(int(contender[-1]))
        engine: Any = nullcontext()
    else:
        import mpgrad as lib  # type: ignore[no-redef]

        engine = lib.Engine(contender, cpu_workers=2)  # type: ignore[attr-defined]
    lib.manual_seed(0)
    parameters, loss = PROGRAMS[program](lib)
    with engine:
        for _ in sys.stdin:
            for parameter in parameters:
                parameter.grad = None
            began = time.perf_counter()
            root = loss()
            between = time.perf_counter()
            root.backward()
            ended = time.perf_counter()
            print(json.dumps([between - began, ended - between, root.item()]), flush=True)


class Contender:
    """A process that runs one program with one library."""

    def __init__(self, program: str, contender: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.probes.layers", "--serve", program, contender],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.took: list[tuple[float, float, float]] = []

    def step(self) -> None:
        """Run one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.took.append(json.loads(self._process.stdout.readline()))

    def median_ms(self, part: int) -> float:
        """Of forward (0) or backward (1)."""
        return 1e3 * statistics.median(took[part] for took in self.took[WARM_STEPS:])

    def close(self) -> None:
        self._process.communicate()


def compare(program: str, steps: int) -> None:
    """Run one program with all contenders, and print two rows."""
    contenders = [Contender(program, name) for name in CONTENDERS]
    for step in range(WARM_STEPS + steps):
        for turn in range(len(contenders)):
            contenders[(step + turn) % len(contenders)].step()
    for contender in contenders:
        contender.close()
    for part, name in enumerate(("forward", "backward")):
        values = " ".join(f"{contender.median_ms(part):9.1f}" for contender in contenders)
        print(f"{program if part == 0 else '':<18} {name:<9} {values}", flush=True)


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:4])
        return
    print(" " * 28 + " ".join(f"{name:>9}" for name in CONTENDERS))
    for program in PROGRAMS:
        compare(program, int(sys.argv[1]) if sys.argv[1:] else STEPS)


if __name__ == "__main__":
    main()
