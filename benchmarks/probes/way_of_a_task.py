"""``python -m benchmarks.probes.way_of_a_task``: how many calls and files the way of a task takes.

Each process of an engine notes each call of a Python function of mpgrad while one backward runs:
a graph's first one, and one of a graph that has come often. Calls of generated functions, of the
standard library and of libraries in C are not among them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np

import mpgrad as mg
from mpgrad import nn

T = TypeVar("T")
#: By process, the file and the name of each function that was called, in order.
Calls = dict[str, list[tuple[str, str]]]
_PACKAGE = f"{Path(mg.__file__).parent}/"
#: Names the directory in which the processes write, and in it the file that says for what.
_VARIABLE, _NOW = "WAY_OF_A_TASK", "now"
#: Backwards until a graph is known, and so many after them, of which the one with the fewest calls
#: counts: in some of them costs are learned.
BEFORE, REPEATED = 40, 6


def hook(process: str, part: T) -> T:
    """What ``mpgrad.base.hook_for_tests`` calls in each process."""
    note_files(process)
    return part


def note_files(process: str) -> None:
    """From now on this thread notes its calls, while there is something to note."""
    now = Path(os.environ[_VARIABLE]) / _NOW
    stream = open(now.with_name(process), "a", buffering=1)  # noqa: SIM115 -- until the process ends

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_PACKAGE):
            return
        try:
            what = now.read_text()
        except FileNotFoundError:
            return
        stream.write(f"{what} {name.removeprefix(_PACKAGE)} {frame.f_code.co_qualname}\n")

    sys.setprofile(note)


def main() -> None:
    """Print the calls and files of both backwards, by process; ``--calls`` prints each call."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {_VARIABLE: directory, "MPGRAD_TEST_HOOK": f"{hook.__module__}:hook"}
        with mg.Engine("process", cpu_workers=2):
            (mg.ones(3, requires_grad=True) * 2.0).sum().backward()  # starts the processes
            note_files("client")
            _run(Path(directory) / _NOW)
            sys.setprofile(None)
        _show("first", _calls("first", Path(directory)))
        often = [_calls(f"repeated{number}", Path(directory)) for number in range(REPEATED)]
        _show("repeated", min(often, key=_count))


def _run(now: Path) -> None:
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())]
    model, x = nn.Sequential(*layers), mg.tensor(np.ones((128, 256), np.float32))
    for number in range(-BEFORE, REPEATED):
        loss = model(x).sum()
        what = "first" if number == -BEFORE else f"repeated{number}"
        if number in (-BEFORE, *range(REPEATED)):
            unfinished = now.with_suffix(".unfinished")
            unfinished.write_text(what)
            unfinished.rename(now)
        loss.backward()
        now.unlink(missing_ok=True)


def _calls(what: str, directory: Path) -> Calls:
    found: Calls = {}
    for process in ("client", "coordinator", "worker"):
        rows = [line.split() for line in (directory / process).read_text().splitlines()]
        found[process] = [(file, function) for label, file, function in rows if label == what]
    return found


def _count(calls: Calls) -> int:
    return sum(map(len, calls.values()))


def _show(what: str, calls: Calls) -> None:
    files = {process: sorted({file for file, _ in rows}) for process, rows in calls.items()}
    behind = {file for process, names in files.items() if process != "client" for file in names}
    print(f"{what}: {len(behind.union(files['client']))} files, {len(behind)} behind the client")
    for process, rows in calls.items():
        changes = sum(before[0] != after[0] for before, after in pairwise(rows))
        print(
            f"  {process}: {len(rows)} calls, {changes} changes of file, "
            f"{len(files[process])} files: {' '.join(files[process])}"
        )
        if "--calls" in sys.argv:
            print("\n".join(f"    {file} {function}" for file, function in rows))


if __name__ == "__main__":
    # Under its own name: the other processes import it.
    from benchmarks.probes.way_of_a_task import main as run

    run()
