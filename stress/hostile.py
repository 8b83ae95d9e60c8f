"""hostile: user code that does its worst, one script for each case: the right gradient or an error
that says why, in bounded time, and nothing left behind.

The cases stand in ``hostile_cases.toml``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stress.run import Run, Verdict, progress_bar
from tests.leftovers import wait_until

#: Seconds that one script may take, and its processes to end behind it.
LIMIT_S, PATIENCE_S = 60.0, 15.0
STEPS = 3
#: The variable by which what is left of a script is known.
MARK = "MPGRAD_HOSTILE"

_SCRIPT = """
import builtins, ctypes, dataclasses, gc, logging, multiprocessing, os, resource, shutil, signal
import subprocess, sys, tempfile, threading, time, warnings
import numpy as np
import mpgrad as mg

MARKER = {directory!r} + "/done"
EXPECTED = [10.0, 10.0, 10.0]

def say(*words, out=os.fdopen(os.dup(1), "w")):
    print(*words, file=out, flush=True)

PARENT = os.getpid()

def end_of_child():
    if os.getpid() != PARENT:
        os._exit(0)

def first():
    "True once in the life of this script, in whatever process."
    try:
        os.close(os.open(MARKER, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

class There(mg.Function):
    run_on = "worker"

    @staticmethod
    def forward(ctx, x):
        return x.detach() * 2.0

    @staticmethod
    def backward(ctx, grad):
{backward}
        return grad * 2.0

class Here(There):
    run_on = "client"

    @staticmethod
    def backward(ctx, grad):
{here}
        return grad * 2.0

def gradient():
    x = mg.ones(3, requires_grad=True)
    ends = [There.apply(x * k).sum() for k in (1.0, 3.0)] + [Here.apply(x).sum()]
    mg.stack(ends).sum().backward()
    return x.grad.tolist()

def gradient_of_operators():
    x = mg.ones(3, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3

{before}

with mg.Engine("process", cpu_workers=2, {options}) as engine:
    for step in range({steps}):
        try:
{around}
            found = gradient()
            end_of_child()
            say("gradient" if found == EXPECTED else f"wrong {{found}}")
        except BaseException as error:
            end_of_child()
            say("error", type(error).__name__, str(error).replace("\\n", " "))
{after}
"""


class Case(NamedTuple):
    """See ``hostile_cases.toml``."""

    before: str = ""
    backward: str = ""
    here: str = ""
    around: str = ""
    after: str = ""
    options: str = ""
    shell: str = ""
    error: str = ""
    last: bool = False
    status: int = 0


CASES: dict[str, Case] = {
    name: Case(**parts)
    for name, parts in tomllib.loads(
        (Path(__file__).parent / "hostile_cases.toml").read_text()
    ).items()
}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", default="", metavar="TEXT", help="only those named like this")


def _perform(options: argparse.Namespace) -> Verdict:
    start = time.monotonic()
    chosen = {name: case for name, case in CASES.items() if options.cases in name}
    failures: list[str] = []
    longest = (0.0, "")
    with progress_bar() as progress:
        bar = progress.add_task("cases", total=len(chosen))
        for name, case in chosen.items():
            began = time.monotonic()
            failure = _try(case)
            longest = max(longest, (time.monotonic() - began, name))
            if failure:
                failures.append(f"{name}: {failure}")
                print(failures[-1], flush=True)
            progress.advance(bar)
    return Verdict(
        bool(chosen) and not failures,
        f"{len(chosen)} cases, {len(failures)} failed; the longest took {longest[0]:.1f} s "
        f"({longest[1]}), all {time.monotonic() - start:.0f} s",
    )


def _try(case: Case) -> str:
    """What was wrong, in words; empty: nothing."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "script.py")
        script.write_text(_source(case, directory))
        command = f'{case.shell} exec "{sys.executable}" "{script}"'
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, MARK: mark, "PYTHONPATH": str(Path(__file__).parents[1])},
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as stuck:
            _end(mark)
            process.kill()
            output, _ = process.communicate()
            return f"not over after {LIMIT_S:g} s; it said {_short(output or stuck.output or b'')}"
        if not wait_until(lambda: not _processes(mark), PATIENCE_S):
            left = _processes(mark)
            _end(mark)
            return f"processes left behind: {left}"
    return _judge(case, output, process.returncode)


def _source(case: Case, directory: str) -> str:
    return _SCRIPT.format(
        directory=directory,
        steps=STEPS,
        options=case.options,
        before=case.before,
        backward=_indented(case.backward, 8),
        here=_indented(case.here, 8),
        around=_indented(case.around, 12),
        after=_indented(case.after, 4),
    )


def _indented(source: str, columns: int) -> str:
    lines = source.strip("\n").splitlines() or ["pass"]
    return "\n".join(" " * columns + line for line in lines)


def _judge(case: Case, output: bytes, status: int) -> str:
    text = output.decode(errors="replace")
    steps = re.findall(r"^(gradient|wrong .*|error .*)$", text, re.MULTILINE)
    if status != case.status:
        return f"exit status {status}: {_short(output)}"
    if len(steps) != STEPS and not (status and steps):
        return f"{len(steps)} steps: {_short(output)}"
    for at, step in enumerate(steps):
        is_error = step.startswith("error")
        if step.startswith("wrong") or (is_error and not case.error):
            return f"step {at}: {step[:600]}"
        if is_error and not re.search(case.error, step):
            return f"step {at} does not say why: {step[:600]}"
    if case.error and not case.last and "gradient" in steps:
        return f"no error: {steps}"
    if case.last and steps[-1] != "gradient":
        return f"the last step: {steps[-1][:600]}"
    return ""


def _short(output: bytes) -> str:
    return repr(output[-800:].decode(errors="replace"))


def _processes(mark: str) -> list[int]:
    """The processes that have inherited the mark of a script."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError):
                environment = Path("/proc", entry, "environ").read_bytes()
                if f"{MARK}={mark}".encode() in environment:
                    found.append(int(entry))
    return found


def _end(mark: str) -> None:
    for pid in _processes(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)


HOSTILE = Run(
    "hostile",
    "user code that does its worst: the right gradient or an error that says why, nothing left",
    _add_options,
    _perform,
)
