"""The test suites of ``scripts/gpu_check``, in parallel, each until its end or its time limit.

A suite that hangs or is cut off reports its results until then, and the test that it was in.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.report import Part

#: Seconds that all suites together may take.
LIMIT_S = 200.0
#: A test that takes this many seconds prints its stack.
SLOW_TEST_S = 60
FAILURES_MAX = 20
#: Characters of a report of failures; pytest's own, from its beginning.
TRACE_MAX = 12_000

_FRONT_END = ("-p", "tests.cuda.everything_on_gpu")


class Suite(NamedTuple):
    """Tests that one pytest runs.

    Attributes:
        name: in the report.
        arguments: of pytest.
        environment: on top of the caller's.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


SUITES = (
    # The slow ones run parts of the other two suites.
    Suite("tests", ("-m", "gpu and not slow", "tests/cuda"), {}),
    Suite(
        "front_end",
        (*_FRONT_END, "-m", "not process and not gpu", "tests/semantics"),
        {"MPGRAD_CUDA_DRIVER": "cupy"},
    ),
    Suite(
        "front_end_in_workers",
        (*_FRONT_END, "-m", "process and not gpu", "tests/semantics"),
        {"MPGRAD_CUDA_DRIVER": "cupy", "MPGRAD_GPUS": "all"},
    ),
)

#: On the fake driver: that suites are run and reported.
REHEARSAL = (
    Suite("tests", ("-m", "not gpu", "tests/cuda/test_cuda_driver.py"), {}),
    Suite("front_end", (*_FRONT_END, "-m", "not process", "tests/semantics/test_views.py"), {}),
    Suite(
        "front_end_in_workers",
        (*_FRONT_END, "-m", "process", "tests/semantics/test_views.py"),
        {"MPGRAD_GPUS": "all"},
    ),
)


def run_suites(
    suites: tuple[Suite, ...], root: Path, environment: Mapping[str, str], limit_s: float = LIMIT_S
) -> Iterator[Part]:
    """Run all suites at once, and yield the result of each in their order."""
    if importlib.util.find_spec("pytest") is None:
        for suite in suites:
            yield Part(suite.name, False, "not run: pytest is not installed", {})
        return
    deadline = time.monotonic() + limit_s
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        outputs = [directory / suite.name for suite in suites]
        running = []
        for suite, output in zip(suites, outputs, strict=True):
            running.append(_start(suite, root, environment, output))
            stack.callback(end, running[-1])
        for suite, process, output in zip(suites, running, outputs, strict=True):
            yield _found(suite.name, process, output, deadline)


def _start(
    suite: Suite, root: Path, environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    options = ["-v", "--tb=short", f"--maxfail={FAILURES_MAX}", "-p", "no:cacheprovider"]
    options += ["-o", f"faulthandler_timeout={SLOW_TEST_S}"]
    with output.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *suite.arguments],
            env={**environment, **suite.environment, "PYTHONUNBUFFERED": "1"},
            cwd=root,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, with all processes of the session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _found(name: str, process: subprocess.Popen[bytes], output: Path, deadline: float) -> Part:
    try:
        status: int | None = process.wait(max(deadline - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        status = None
        end(process)
    text = output.read_text(errors="replace")
    if status == 0:
        return Part(name, True, _last_line(text), {})
    return Part(name, False, _summary(text, status), {"trace": _trace(text)})


def _summary(text: str, status: int | None) -> str:
    """Pytest's own last line, or its counts when it was cut off."""
    if status is not None and status >= 0:
        return _last_line(text)
    outcomes = re.findall(r" (PASSED|FAILED|ERROR|SKIPPED)\b", text)
    counted = ", ".join(
        f"{outcomes.count(outcome)} {outcome.lower()}" for outcome in sorted(set(outcomes))
    )
    ended = "was cut off" if status is None else f"died of signal {-status}"
    started = re.findall(r"^(tests/\S+::.*?)(?: (?:PASSED|FAILED|ERROR|SKIPPED)\b.*)?$", text, re.M)
    where = started[-1].strip() if started else "its beginning"
    return f"{ended} in {where} after {counted or 'nothing'}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip("= ") if lines else "said nothing"


def _trace(text: str) -> str:
    """The failures, or its progress."""
    start = text.find("= FAILURES =")
    if start < 0:
        start = text.find("= ERRORS =")
    return text[start:][:TRACE_MAX] if start >= 0 else text[-TRACE_MAX:]
