"""``python -m benchmarks.probes.way_of_a_task``: in how many files the way of one NodeTask runs.

Each process of an engine notes the files of mpgrad in which a function is called while one
backward runs: a graph's first one, and one of a graph that has come often.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np

import mpgrad as mg
from mpgrad import nn

T = TypeVar("T")
_PACKAGE = f"{Path(mg.__file__).parent}/"
#: Names the directory in which the processes write, and in it the file that says for what.
_VARIABLE, _NOW = "WAY_OF_A_TASK", "now"
#: Backwards until a graph is known, and so many after them, of which the one with the fewest files
#: counts: in some of them costs are learned.
BEFORE, REPEATED = 40, 6


def hook(process: str, part: T) -> T:
    """What ``mpgrad.base.hook_for_tests`` calls in each process."""
    note_files(process)
    return part


def note_files(process: str) -> None:
    """From now on this thread notes where its functions stand, while there is something to note."""
    directory, noted = Path(os.environ[_VARIABLE]), set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_PACKAGE):
            return
        try:
            entry = f"{(directory / _NOW).read_text()} {process} {name.removeprefix(_PACKAGE)}\n"
        except FileNotFoundError:
            return
        if entry not in noted:
            noted.add(entry)
            with open(directory / process, "a") as stream:
                stream.write(entry)

    sys.setprofile(note)


def main() -> None:
    """Print the files of both backwards, by process."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {_VARIABLE: directory, "MPGRAD_TEST_HOOK": f"{hook.__module__}:hook"}
        with mg.Engine("process", cpu_workers=2):
            (mg.ones(3, requires_grad=True) * 2.0).sum().backward()  # starts the processes
            note_files("client")
            _run(Path(directory) / _NOW)
            sys.setprofile(None)
        _show("first", _found("first", Path(directory)))
        often = [_found(f"repeated{number}", Path(directory)) for number in range(REPEATED)]
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


def _found(what: str, directory: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for process in ("client", "coordinator", "worker"):
        rows = [line.split() for line in (directory / process).read_text().splitlines()]
        found[process] = sorted({name for label, _, name in rows if label == what})
    return found


def _count(found: dict[str, list[str]]) -> int:
    return len({name for names in found.values() for name in names})


def _show(what: str, found: dict[str, list[str]]) -> None:
    behind = _count({process: names for process, names in found.items() if process != "client"})
    print(f"{what}: {_count(found)} files, {behind} behind the client")
    for process, names in found.items():
        print(f"  {process} {len(names)}: {' '.join(names)}")


if __name__ == "__main__":
    # Under its own name: the other processes import it.
    from benchmarks.probes.way_of_a_task import main as run

    run()
