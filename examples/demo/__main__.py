"""Races 16 slow branches, then trains a network on real images: ``scripts/demo``.

``digits`` (the network), ``branches`` and ``torch_branches`` (the race) compute; this file only
calls them and shows what came out.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import mpgrad as mg
from examples.demo import branches, digits, torch_branches
from examples.demo.branches import BRANCHES, Race
from examples.demo.digits import Digits, Training
from examples.demo.large_letters import in_large_letters
from mpgrad.base import machine
from mpgrad.launch.measurements import two_cores

#: Work of one pass of a branch; calibrated on the machine that the demo runs on.
BRANCH_MS = 20.0
#: Below that, two processes at once say that the machine has no second core for workers now.
TWO_CORES = 1.6


def main() -> int:
    """Run the demo and print its results.

    Returns:
        1 where scikit-learn is missing, or where the modes gave different numbers; else 0.
    """
    console = Console(highlight=False)
    try:
        images = digits.load()
    except ImportError:
        console.print("The demo needs scikit-learn: pip install scikit-learn", markup=False)
        return 1
    console.print(f"[bold]mpgrad {mg.__version__}[/] on {_machine()}\n")
    page = os.path.join(tempfile.mkdtemp(prefix="mpgrad-demo-"), "backward.html")
    same_branches = _show_branches(console, page)
    same_network = _show_digits(console, images)
    _show_what_next(console, page)
    return 0 if same_network and same_branches else 1


def _machine() -> str:
    """What the figures depend on: Python, CPUs, and how busy these are with other things."""
    load = f", load {os.getloadavg()[0]:.1f} before the start" if hasattr(os, "getloadavg") else ""
    return f"Python {platform.python_version()}, {machine.available_cpus()} CPUs{load}"


# ---------------------------------------------------------------------------- the network


def _show_digits(console: Console, images: Digits) -> bool:
    """Train in both modes; whether the parameters came out the same."""
    console.print(
        f"[bold]2. A convolutional network on {len(images.train) + len(images.test):,} "
        "handwritten digits[/]"
    )
    with _progress(console) as progress:
        local = _train("local", images, progress)
        process = _train("process", images, progress)
    console.print(_indented(_training_table(local, process)))
    same = local.parameters == process.parameters
    console.print(
        f"   parameters after {local.steps:,} steps ({len(local.parameters):,} bytes): "
        f"{_same_or_not(same)}"
    )
    console.print(_verdict(local, process), "", sep="\n")
    return same


def _train(mode: str, images: Digits, progress: Progress) -> Training:
    after_step = _counter(progress, mode, digits.steps(images))
    return digits.train(mode, images, lambda loss: after_step(f"loss {loss:.4f}"))


def _counter(progress: Progress, name: str, total: int) -> Callable[[str], None]:
    """A function that moves a new bar on by one and writes a text beside it."""
    task = progress.add_task(f"   {name:<7}", total=total, beside="")
    stride = max(1, total // 50)

    def advance(text: str) -> None:
        progress.update(task, advance=1, beside=text)
        # Drawn here, between two measurements, and not by a thread in the middle of one.
        if progress.tasks[task].completed % stride == 0:
            progress.refresh()

    return advance


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[beside]}"),
        console=console,
        auto_refresh=False,
        disable=not console.is_terminal,
    )


def _training_table(*trainings: Training) -> Table:
    table = _table("mode", "forward", "backward", "optimizer", "accuracy", "tasks run by")
    for training in trainings:
        tasks = ", ".join(f"{who}: {count:,}" for who, count in training.tasks.items())
        table.add_row(
            training.mode,
            f"{training.forward_s:.2f} s",
            f"{training.backward_s:.2f} s",
            f"{training.optimizer_s:.2f} s",
            f"{training.accuracy:.1%}",
            tasks or "this process",
        )
    return table


def _verdict(local: Training, process: Training) -> str:
    """One line about which mode was faster for this network, and why."""
    per_step_ms = local.backward_s / local.steps * 1000
    ratio = process.backward_s / local.backward_s
    chosen = f'"auto", the default, would choose {local.auto_mode}'
    if ratio <= 1.0:
        return f"   process was {1 / ratio:.2f}x as fast in backward ({chosen})."
    return (
        f"   process took {ratio:.1f}x as long in backward: one of {per_step_ms:.1f} ms is too "
        f"small to repay\n   the messages between processes ({chosen})."
    )


# ---------------------------------------------------------------------------- the race


def _show_branches(console: Console, page: str) -> bool:
    """Race the branches; whether the gradients came out the same."""
    terms = branches.calibrate(BRANCH_MS / 1000)
    console.print(
        f"[bold]1. A step of {BRANCHES} branches: {BRANCH_MS:.0f} ms of pure Python forward, and "
        "as much backward[/]"
    )
    with _progress(console) as progress:
        after_round = _counter(progress, "rounds", branches.ROUNDS)
        race = branches.race(terms, torch_branches.branches(terms), lambda: after_round(""), page)
    console.print(_indented(_race_table(race)))
    same = race.local.gradients == race.process.gradients == race.auto.gradients
    console.print(_speed_up(race, ink="█" if console.encoding.startswith("utf") else "#"))
    console.print(f"   gradients of all modes: {_same_or_not(same)}")
    console.print(*_busy(), "", sep="\n")
    return same


def _race_table(race: Race) -> Table:
    table = _table("one step", "median", "the branches run in")
    if race.torch is not None:
        table.add_row("torch", _ms(race.torch.median_s), "one thread, which holds the GIL")
    table.add_row("mpgrad local", _ms(race.local.median_s), "one thread, which holds the GIL")
    table.add_row("mpgrad process", _ms(race.process.median_s), f"{race.workers} worker processes")
    table.add_row("mpgrad auto", _ms(race.auto.median_s), "where it has found it to be faster")
    return table


def _busy() -> list[str]:
    """A line if this machine has no second core for workers now."""
    if machine.available_cpus() < 2:
        return ["   this machine has one CPU: workers cannot be faster than one process"]
    speed_up = two_cores().speed_up
    if speed_up >= TWO_CORES:
        return []
    return [
        f"   two processes do {speed_up:.2f}x the work of one: they share a core, or others use "
        "this machine now"
    ]


def _speed_up(race: Race, ink: str) -> Panel:
    other, name = (race.local, "mpgrad local") if race.torch is None else (race.torch, "torch")
    number = f"{other.median_s / race.process.median_s:.2f}x"
    return Panel(
        f"[bold green]{in_large_letters(number, ink)}[/]\n\n"
        f"as fast as {name}, with {race.workers} workers",
        title="one step, forward and backward",
        expand=False,
        padding=(1, 4),
    )


# ---------------------------------------------------------------------------- and then


def _show_what_next(console: Console, page: str) -> None:
    console.print("[bold]Now try[/]")
    for command, words in (
        (f"xdg-open {page}", "when which worker ran what in one step of part 1"),
        ("python examples/quickstart.py", "the smallest program; others stand beside it"),
        ("mpgrad run --profile page.html script.py", "the same page about a script of yours"),
        ("mpgrad doctor", "what this machine offers to workers"),
    ):
        console.print(f"   {command}", markup=False, soft_wrap=True)
        console.print(f"      [dim]{words}[/]")


# ---------------------------------------------------------------------------- how it looks


def _same_or_not(same: bool) -> str:
    return "[bold green]identical bit for bit[/]" if same else "[bold red]they differ[/]"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column)
    return table


def _indented(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 3))


if __name__ == "__main__":
    sys.exit(main())
