"""Topology: which processors are threads of one core, and which are near the same memory.

It is read where Linux shows it (``/sys/devices/system``). A processor of which nothing is shown is
a core of its own, on node 0.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from mpgrad.base import machine

T = TypeVar("T")

_SYSTEM = "/sys/devices/system"


class Core(NamedTuple):
    """A core: its processors that this process may use, and its NUMA node."""

    cpus: tuple[int, ...]
    node: int


def cores(allowed: Sequence[int] | None = None, root: str = _SYSTEM) -> list[Core]:
    """The cores that this process may use, by node and number.

    Args:
        allowed: the numbers of the processors; None: those of this process's affinity.
        root: the directory that shows the system.
    """
    usable = machine.processors() if allowed is None else set(allowed)
    node_of = {cpu: node for node, cpus in _nodes(root) for cpu in cpus}
    found = {
        Core(tuple(sorted(usable & {cpu, *_threads_of(cpu, root)})), node_of.get(cpu, 0))
        for cpu in usable
    }
    return sorted(found, key=lambda core: (core.node, core.cpus))


def bindings(
    pin: str, workers: int, allowed: Sequence[int] | None = None, root: str = _SYSTEM
) -> list[tuple[int, ...]]:
    """The processors of each worker, by slot; empty where workers are not bound.

    With "cores" a worker has a core with all its threads, on one node after the other. If there are
    more workers than cores, each has one thread, and several share one if there are more workers
    than threads. With "nodes" a worker has all processors of a node.

    Args:
        pin: "cores", "nodes", or "none".
        workers: the number of CPU workers.
        allowed, root: see ``cores``.
    """
    if pin == "none":
        return []
    by_node: dict[int, list[Core]] = {}
    for core in cores(allowed, root):
        by_node.setdefault(core.node, []).append(core)
    if pin == "nodes":
        places = [
            tuple(sorted(cpu for core in one for cpu in core.cpus)) for one in by_node.values()
        ]
    else:
        spread = _in_turns(list(by_node.values()))
        places = [core.cpus for core in spread]
        if workers > len(places):
            places = _in_turns([[(cpu,) for cpu in core.cpus] for core in spread])
    return [places[slot % len(places)] for slot in range(workers)]


def share_of(part: int, parts: int, root: str = _SYSTEM) -> tuple[int, ...]:
    """The processors of one of several processes that share this machine: whole cores, neighbours.

    Args:
        part: 0 to ``parts`` - 1.
        parts: the number of processes; if there are more than cores, several have the same one.
        root: see ``cores``.
    """
    found = cores(root=root)
    if parts > len(found):
        return found[part % len(found)].cpus
    own = found[part * len(found) // parts : (part + 1) * len(found) // parts]
    return tuple(sorted(cpu for core in own for cpu in core.cpus))


def parse_cpus(text: str) -> list[int]:
    """The numbers in a list as the kernel writes it: ``0-2,8`` is 0, 1, 2, 8."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _in_turns(rows: Sequence[Sequence[T]]) -> list[T]:
    """The first of each row, then the second of each, and so on."""
    longest = max(map(len, rows), default=0)
    return [row[at] for at in range(longest) for row in rows if at < len(row)]


def _threads_of(cpu: int, root: str) -> list[int]:
    """All threads of the core to which a processor belongs."""
    return parse_cpus(_text(os.path.join(root, f"cpu/cpu{cpu}/topology/thread_siblings_list")))


def _nodes(root: str) -> Iterator[tuple[int, list[int]]]:
    """The NUMA nodes and their processors."""
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.join(root, "node")):
            if name.startswith("node") and name[4:].isdecimal():
                yield int(name[4:]), parse_cpus(_text(os.path.join(root, "node", name, "cpulist")))


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""
