"""scale: small nodes from a thousand to a million, with the time and the memory of each."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psutil

from benchmarks.fresh import call
from benchmarks.peers.process import NOT_INSTALLED, is_installed
from benchmarks.rounds import Case, Contender, WrongGradient
from benchmarks.workloads.per_node import PROCESS, TORCH, per_node

ABOUT = """\
`overhead`'s *chain* and *wide* up to a million nodes. Every sample is a new interpreter (with new
workers), so that neither memory nor a plan left by the one before is used again; a smaller graph
runs first. Bytes
are growth of resident memory: *recorded* after forward, without the leaves; *peak* at the worst
moment of the backward, the recorded graph and the leaves' gradients included. Below 100,000 nodes
allocators' steps would show. Whoever would need too long for the next size, or too much memory, by
what the last one took, leaves it out."""

#: The row, the module that must be installed, and the name in ``small_nodes``.
_WHO = (
    (PROCESS, "mpgrad", "process"),
    ("mpgrad local", "mpgrad", "local"),
    (TORCH, "torch", "torch"),
    ("HIPS autograd", "autograd", "hips"),
)
#: Rounds by number of nodes.
_ROUNDS = {1_000: 3, 10_000: 3, 100_000: 1, 1_000_000: 1}
_QUICK = (1_000, 10_000)
#: The smallest graph whose bytes are shown.
_BYTES_FROM = 100_000
#: A backward that would take longer than this is omitted, and so is one that needs a larger share
#: of the free memory.
SECONDS_MAX = 90.0
_MEMORY_SHARE_MAX = 0.5


@dataclass
class _Measured:
    """The samples of one contender for one graph, by the names that ``small_nodes`` gives them."""

    nodes: int
    samples: list[dict[str, Any]] = field(default_factory=list)

    def next_size_is_too_large(self, nodes: int) -> str:
        """The reason not to try the next graph, or an empty text."""
        if not self.samples:
            return ""
        factor = nodes / self.nodes
        seconds = min(sample["seconds"] for sample in self.samples) * factor
        if seconds > SECONDS_MAX:
            return f"left out: about {seconds:.0f} s"
        nbytes = max(s["client_bytes"] + s["coordinator_bytes"] for s in self.samples) * factor
        if nbytes > _MEMORY_SHARE_MAX * psutil.virtual_memory().available:
            return f"left out: about {nbytes / 2**30:.0f} GiB"
        return ""


def cases(quick: bool) -> Generator[Case, None, None]:
    """Each shape in each size: time, and for large graphs memory."""
    for shape in ("chain", "wide"):
        before: dict[str, _Measured] = {}
        for nodes in _QUICK if quick else _ROUNDS:
            rounds = 1 if quick else _ROUNDS[nodes]
            measured = {name: _Measured(nodes) for name, _, _ in _WHO}
            contenders = [
                _contender(*who, shape, measured[who[0]], before.get(who[0])) for who in _WHO
            ]
            yield per_node(shape, nodes, contenders, rounds, warm_up_rounds=0)
            if nodes >= _BYTES_FROM and any(found.samples for found in measured.values()):
                yield _bytes(shape, nodes, measured)
            before.update({name: found for name, found in measured.items() if found.samples})


def _contender(
    name: str, module: str, who: str, shape: str, measured: _Measured, before: _Measured | None
) -> Contender:
    if not is_installed(module):
        return Contender(name, None, remark=lambda: NOT_INSTALLED)
    reason = "" if before is None else before.next_size_is_too_large(measured.nodes)
    if reason:
        return Contender(name, None, remark=lambda: reason)

    def sample() -> float:
        found = call("probes.small_nodes.small_nodes", who, shape, measured.nodes)
        measured.samples.append(found)
        return float(found["seconds"])

    return Contender(name, sample)


def _bytes(shape: str, nodes: int, measured: dict[str, _Measured]) -> Case:
    """The figures from the samples of the case before; nothing runs again."""
    _check_gradients(measured)
    rows: list[Contender] = []
    present = {name: found for name, found in measured.items() if found.samples}
    for name, found in present.items():
        rows.append(_row(f"{name}, recorded", found, "graph_bytes"))
        rows.append(_row(f"{name}, peak", found, "client_bytes"))
        if name == PROCESS:
            rows.append(_row("mpgrad coordinator, peak", found, "coordinator_bytes"))
    rounds = min(len(found.samples) for found in present.values())
    return Case(
        f"{shape}, {nodes:,} nodes, memory",
        rows,
        (f"{TORCH}, peak",),
        rounds,
        "bytes per node",
        1.0 / nodes,
        warm_up_rounds=0,
        quantity="bytes",
    )


def _row(name: str, measured: _Measured, figure: str) -> Contender:
    figures = iter([float(sample[figure]) for sample in measured.samples])
    return Contender(name, partial(next, figures))


def _check_gradients(measured: dict[str, _Measured]) -> None:
    """Compare gradients, which ``measure`` cannot: they are in other processes, and gone."""
    found = [
        (name, np.array(sample["gradient"]))
        for name, one in measured.items()
        for sample in one.samples
    ]
    for name, gradient in found[1:]:
        if not np.allclose(gradient, found[0][1], rtol=1e-3):
            raise WrongGradient(f"{name} and {found[0][0]} differ: {gradient} and {found[0][1]}")
