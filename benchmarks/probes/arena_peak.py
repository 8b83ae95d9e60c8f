"""arena_peak(): the largest size of both arenas in training steps, and the least they must hold."""

from __future__ import annotations

import mpgrad as mg
from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.probes.live_bytes import peak_live_bytes
from benchmarks.runners import WORKERS, ForwardPass
from benchmarks.workloads import networks, perceptrons

STEPS = 4


def arena_peak(program: str) -> dict[str, int]:
    """Measure the steps of one of :func:`programs`, in ``process`` mode.

    Returns:
        ``peak_bytes``: the sum of the peaks of the client's arena and the engine's.
        ``live_bytes``: see ``peak_live_bytes``, of the last step.
    """
    with mg.Engine(mode="process", cpu_workers=WORKERS) as engine:
        work = programs(program)
        live = 0
        for _ in range(STEPS):
            for leaf in work.leaves:
                leaf.grad = None
            root = work.forward()
            live = peak_live_bytes(root, [*work.leaves, *work.constants])
            root.backward()
            del root
        found = engine.statistics()
    arenas = [found.client_arena, found.engine_arena]
    peak = sum(arena.peak_bytes for arena in arenas if arena is not None)
    return {"peak_bytes": peak, "live_bytes": live}


def programs(name: str) -> ForwardPass:
    """The program by its name in the table."""
    if name.startswith("numpy_branches"):
        return perceptrons.program(Perceptrons(8, 4, 512), mg)
    if name.startswith("mlp_chain"):
        return perceptrons.program(Perceptrons(1, 8, 1024), mg)
    return networks.resnet_step(32, 32, mg)
