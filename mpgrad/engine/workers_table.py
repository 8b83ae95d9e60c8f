"""table_of_workers(): the workers of an engine that has started: where each runs, and on what."""

from __future__ import annotations

import mpgrad
from mpgrad.base import machine
from mpgrad.base.topology import cores

_GIB = 2**30


def table_of_workers(engine: mpgrad.Engine, took_s: float, *, asks_for_gpus: bool = False) -> str:
    """Lines for people.

    Args:
        engine: its processes run.
        took_s: the seconds that their start took.
        asks_for_gpus: whether the user wants all GPUs.
    """
    pids = engine.worker_pids()
    node_of = {cpu: core.node for core in cores() for cpu in core.cpus}
    lines = [
        f"mpgrad run: {len(pids)} {'worker is' if len(pids) == 1 else 'workers are'} ready after "
        f"{took_s:.2f} s",
        f"  {'worker':<8}{'pid':>8}  {'processors':<16}{'NUMA node':<11}device",
    ]
    for slot, pid in enumerate(pids):
        try:
            cpus = sorted(machine.processors(pid))
        except ProcessLookupError:  # it has died meanwhile, and gets a successor
            cpus = []
        nodes = sorted({node_of.get(cpu, 0) for cpu in cpus})
        lines.append(
            f"  {slot:<8}{pid:>8}  {_as_list(cpus):<16}{_as_list(nodes):<11}{_device(engine, slot)}"
        )
    if not engine.gpus and asks_for_gpus:
        lines.append("  no GPU was found")
    return "\n".join(lines)


def _device(engine: mpgrad.Engine, slot: int) -> str:
    """CPU workers come first, then those of GPUs."""
    if slot < engine.cpu_workers:
        return "CPU"
    number = engine.gpus[slot - engine.cpu_workers]
    free, total = mpgrad.cuda.mem_get_info(number)
    return (
        f"cuda:{number} {mpgrad.cuda.get_device_name(number)}, "
        f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    )


def _as_list(numbers: list[int]) -> str:
    """Numbers in order, as the kernel writes them: 0, 1, 2, 8 is ``0-2,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
