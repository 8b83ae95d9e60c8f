"""The page ``docs/evidence/scaling.md`` and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.scaling.costs import H100, Costs
from benchmarks.scaling.experiments import GPU_BATCH
from benchmarks.scaling.simulation import Outcome
from benchmarks.scaling.validation import Backwards, Check

#: The target of the mixture and of the simulators at this many workers.
ASKED_SHARE, ASKED_WORKERS = 0.9, 16
ASKED_OF = ("mixture", "simulators")
#: A coordinator that is busy for a larger share of the time delays others.
FULL = 0.9
_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#e69f00", "#cc79a7")


@dataclass
class Results:
    """All results of one run."""

    machine: dict[str, str]
    costs: Costs
    about: dict[str, str] = field(default_factory=dict)
    cpu: dict[str, list[Outcome]] = field(default_factory=dict)
    gpu: dict[str, list[Outcome]] = field(default_factory=dict)
    #: By the length of the Nodes in microseconds, and whether they may be fused.
    saturation: dict[tuple[float, bool], list[Outcome]] = field(default_factory=dict)
    seconds: float = 0.0
    #: Shares of the bound with ASKED_WORKERS, each with a new calibration and recording.
    asked: dict[str, list[float]] = field(default_factory=dict)
    #: Two real workers compared with two simulated ones.
    checks: list[Check] = field(default_factory=list)


_INTRODUCTION = """\
# Simulated scaling

`scripts/simulate --write docs/evidence/scaling.md` writes this page. **These figures are simulated,
not measured**: the machine has two cores. Coordinator, supervisor, workers and session are the
engine's own, with real plans, and every message passes the real codec. Only time is computed.

* mpgrad records the graphs in real forward passes. Each Node takes its time in `local` mode on
  this machine: the shortest of five backwards, after two backwards that map the pages of the
  results. All other costs are also the shortest of several measurements, because the speed of
  this machine changes by a factor of 1.8 within seconds.
* The simulation measures the time of the coordinator's state machine for each event while it runs
  it. It leaves out the first backward, and Python's garbage collector, which
  would walk the recorded models.
* The next section but one compares simulated with measured times of two workers, the largest
  number for this machine.
* **Not confirmed on real hardware**: this simulation, with these graphs, served to choose the
  lengths of chains, bundles and messages for more than two workers (`scheduler/fusion.py`,
  `bundling.py`, `chunks.py`). `scripts/bench cores` runs such programs with 1, 2, 4 and more real
  workers, up to the cores of the machine, beside torch and the simulation; it has met two cores.
* The `mixture` is dense: every expert sees every sample. The critical path of the routed mixture
  is about a sixth of its work, so it cannot use 16 workers.
* The figures do not contain the client's walk over the graph before it plans the backward. During
  that walk the coordinator handles the gradients of the previous backward, as in an engine.
* The last section lists the other constants; the command measures all of them.
* Assumptions that favour mpgrad: each worker has a core, and the memory bandwidth of a core
  without neighbours; coordinator and client have their own cores; no other program runs. A figure
  is that of a backward late in a training loop, when every page of the arenas is mapped in every
  process. The table shows the *first* backward beside it.
* The *bound* is work / workers or the critical path, whichever is longer. The path counts
  expensive Nodes without their weight gradients, which may run in parallel. No schedule is faster
  than the bound. Most graphs cannot reach it, because the serial parts before and after a wide
  part are in neither term.
* A speed-up compares with one process that only runs the rules.
"""


def page(results: Results, picture: str = "") -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION, picture, "## In short\n", _verdicts(results)]
    if results.checks:
        parts += ["## Two workers, simulated and measured\n", _checks(results.checks)]
    parts += ["## CPU workers\n"]
    for name, outcomes in results.cpu.items():
        parts += [f"### {name}\n", f"{results.about[name]}; {_size(outcomes[0])}.\n"]
        parts.append(_table(outcomes))
    parts += ["## Where the coordinator is full\n", _saturation(results)]
    parts += ["## GPUs (a model)\n", _gpus(results)]
    parts += ["## Constants\n", _constants(results)]
    return "\n".join(part for part in parts if part)


def _size(outcome: Outcome) -> str:
    bound = outcome.bound
    path_ms = bound.critical_path_us / 1e3
    return f"{bound.work_us / 1e3:,.0f} ms of work, critical path {path_ms:,.0f} ms"


def _verdicts(results: Results) -> str:
    lines = []
    for name in ASKED_OF:
        if shares := results.asked.get(name):
            verdict = "reached" if min(shares) >= ASKED_SHARE else "NOT reached"
            lines.append(
                f"* {name}, {ASKED_WORKERS} workers: {min(shares):.1%} to {max(shares):.1%} of the "
                f"bound in {len(shares)} runs, each with its own calibration and recording "
                f"({ASKED_SHARE:.0%} asked: {verdict})."
            )
    for (task_us, fuse), outcomes in results.saturation.items():
        full = [outcome.workers for outcome in outcomes if outcome.coordinator_load > FULL]
        where = f"is full at {full[0]} workers" if full else "is not full with any of these numbers"
        how = "as the engine plans them" if fuse else "each a message of its own"
        lines.append(f"* Nodes of {task_us / 1e3:g} ms, {how}: the coordinator {where}.")
    return "\n".join(lines) + "\n"


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---:"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _table(outcomes: Sequence[Outcome]) -> str:
    header = (
        "workers", "tasks", "ms", "speed-up", "bound", "share of bound", "workers compute",
        "coordinator busy", "us per task there", "first, ms",
    )  # fmt: skip
    return _rows(
        header,
        [
            (
                str(found.workers),
                str(found.tasks),
                f"{found.makespan_us / 1e3:,.1f}",
                f"{found.speed_up:.2f}",
                f"{found.bound.work_us / found.bound.makespan_us(found.workers):.2f}",
                f"{found.share_of_bound:.1%}",
                f"{found.worker_load:.0%}",
                f"{found.coordinator_load:.1%}",
                f"{found.coordinator_us_per_task:.0f}",
                f"{found.first_us / 1e3:,.1f}",
            )
            for found in outcomes
        ],
    )


def _checks(checks: Sequence[Check]) -> str:
    about = (
        "From a graph's tables to its gradients (`Engine.execute`), in ms; median of "
        f"{Backwards().timed} and quartiles. Each graph is simulated twice: with the times of its "
        "Nodes when one core works alone, as everywhere else on this page, and with those that the "
        "two workers reported. What the first is short of, and the second is not, is what two busy "
        "cores take from each other (caches, memory, power); the rest is wrong in the simulation. "
        "Client and coordinator share the workers' cores, here and in these simulations alone.\n"
    )
    header = ("graph", "tasks", "measured", "quartiles", "simulated", "error", "work of the Nodes",
              "simulated with the workers' times", "error", "work by these")  # fmt: skip
    rows = [
        (
            check.name,
            str(check.tasks),
            _ms(check.measured_us),
            " to ".join(map(_ms, check.spread_us)),
            _ms(check.alone_us),
            f"{check.alone_us / check.measured_us - 1:+.0%}",
            _ms(check.work_alone_us),
            _ms(check.reported_us),
            f"{check.reported_us / check.measured_us - 1:+.0%}",
            _ms(check.work_reported_us),
        )
        for check in checks
    ]
    return about + "\n" + _rows(header, rows)


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.2f}"


def _saturation(results: Results) -> str:
    about = (
        "Independent Nodes of equal length, 40 for each worker: share of the time in which the "
        "coordinator is busy, and share of the bound that is reached. *Alone*: each is a task, the "
        "worst case; else the engine's own plan, which puts short ones together.\n"
    )
    counts = [found.workers for found in next(iter(results.saturation.values()))]
    header = ["Nodes of", *(f"{count} workers" for count in counts)]
    rows = [
        [
            f"{task_us / 1e3:g} ms{'' if fuse else ', alone'}",
            *(f"{found.coordinator_load:.0%}, {found.share_of_bound:.0%}" for found in outcomes),
        ]
        for (task_us, fuse), outcomes in results.saturation.items()
    ]
    return about + "\n" + _rows(header, rows)


def _gpus(results: Results) -> str:
    about = (
        f"Nothing of this was measured: no GPU was at hand. Times come from a "
        f"roofline of the {H100.name} ({H100.source}); every Node starts {H100.kernels_per_node} "
        f"kernels of {H100.launch_us:g} us (assumed). Batches are {GPU_BATCH} times those above. "
        f"Messages cost what they cost here.\n"
    )
    parts = [about]
    for name, outcomes in results.gpu.items():
        parts += [f"### {name}, {GPU_BATCH} x {results.about[name]}\n", _table(outcomes)]
    return "\n".join(parts)


def _constants(results: Results) -> str:
    costs = results.costs
    names = {
        "wire_us": "a message to a receiver that is looking, us",
        "wire_us_per_kb": "and per kilobyte, us",
        "asleep_us": "a message to one that sleeps, us",
        "send_us": "processor time of a send, us",
        "receive_us": "of taking a message, us",
        "poll_us": "of looking for messages, us",
        "codec_us": "of encoding or decoding, us",
        "codec_us_per_kb": "and per kilobyte of tables, us",
        "inline_us_per_kb": "and per kilobyte of gradients inside, us",
        "task_us": "a worker's time for a task beside its rules, us",
        "starting_us": "and for each further Node before the first one runs, us",
        "node_us": "and while they run, us",
        "fetch_us_per_mb": "reading a gradient that another worker wrote, us per MB",
        "touch_us_per_mb": "first touch of a page that others have used, us per MB",
    }
    figures = {**costs.messages._asdict(), **costs.worker._asdict()}
    rows = [(text, f"{figures[name]:.2f}") for name, text in names.items()]
    rows.append(("adding a contribution to a sum, us per MB", f"{costs.add_us_per_mb:.1f}"))
    machine = "\n".join(f"* {name}: {text}" for name, text in results.machine.items())
    return f"{machine}\n* this run: {results.seconds:.0f} s\n\n" + _rows(("cost", "here"), rows)


def draw(results: Results, target: Path) -> str:
    """Write the picture beside ``target``; the Markdown that shows it, if matplotlib is here."""
    if find_spec("matplotlib") is None:
        return ""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for colour, (name, outcomes) in zip(_COLOURS, results.cpu.items(), strict=False):
        workers = [found.workers for found in outcomes]
        axes.plot(workers, [found.speed_up for found in outcomes], "o-", color=colour, label=name)
        bounds = [
            found.bound.work_us / found.bound.makespan_us(found.workers) for found in outcomes
        ]
        axes.plot(workers, bounds, ":", color=colour, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(workers, [str(count) for count in workers])
    axes.set_yticks(ticks := [1, 2, 4, 8, 16, 32, 64], [str(tick) for tick in ticks])
    axes.set_xlabel("CPU workers")
    axes.set_ylabel("speed-up of one backward")
    axes.set_title("Simulated scaling; dotted: the bound")
    axes.grid(alpha=0.3)
    axes.legend()
    path = target.with_suffix(".png")
    figure.savefig(path, dpi=144, metadata={"Software": None})
    return f"![Speed-up against workers]({path.name})\n"
