"""The command: ``scripts/programs`` fetches public programs and runs each with both libraries."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from programs import page
from programs.compare import Outcome, compare
from programs.sources import ROOT, SUBSTITUTES, Repository, fetched, manifest


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen programs; 1 if a program does not do the same as with PyTorch."""
    parser = argparse.ArgumentParser(prog="scripts/programs", description=__doc__)
    parser.add_argument("only", nargs="*", help="a part of the names of the programs to run")
    parser.add_argument("--steps", type=int, default=20, help="backwards a program may begin")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run")
    parser.add_argument("--jobs", type=int, default=1, help="programs to run at once")
    parser.add_argument("--copies", type=Path, help="use these clones, each owner+name")
    parser.add_argument("--write", action="store_true", help=f"write {page.PAGE.name}")
    options = parser.parse_args(arguments)
    chosen = [
        (repository, program)
        for repository in manifest()
        for program in repository.programs
        if _is_chosen(repository.source, program, options.only)
    ]
    folders = {repository: fetched(repository, options.copies) for repository, _ in chosen}

    def compared(entry: tuple[Repository, str]) -> page.Row:
        repository, program = entry
        folder, limits = folders[repository], (options.steps, options.timeout)
        torch = run("torch", folder, program, *limits)
        ours = run("mpgrad", folder, program, *limits)
        return page.Row(repository.source, program, torch, ours, compare(torch, ours))

    rows = []
    with ThreadPoolExecutor(options.jobs) as runners:
        for row in runners.map(compared, chosen):
            rows.append(row)
            print(row.line, flush=True)
    print(page.summary(rows))
    if options.write:
        page.write(rows, manifest(), options.steps)
    return int(any(row.comparable and not row.verdict.agrees for row in rows))


def _is_chosen(source: str, program: str, only: list[str]) -> bool:
    return not only or any(part in f"{source}/{program}" for part in only)


def run(library: str, folder: Path, name: str, steps: int, timeout_s: float) -> Outcome:
    """Run the program ``name`` (a path and its arguments) in its own folder, with one thread."""
    path, *arguments = shlex.split(name)
    program = folder / path
    with tempfile.TemporaryDirectory(prefix="programs-") as scratch:
        losses = Path(scratch) / "losses.json"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(place) for place in (ROOT, folder, SUBSTITUTES)),
            "PROGRAM_LOSSES": str(losses),
            "PYTHONHASHSEED": "0",
            "PYTHONWARNINGS": "ignore",
            "MPLBACKEND": "Agg",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        under = [sys.executable, "-m", "programs.under"]
        command = [*under, library, str(steps), str(program), *arguments]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
                cwd=program.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return Outcome(None, [], "", "")
        values = json.loads(losses.read_text()) if losses.exists() else []
        error = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
        return Outcome(done.returncode, values, done.stdout, error)


if __name__ == "__main__":
    sys.exit(main())
