"""``scripts/gpu_check``: every GPU test and benchmark in less than 8 minutes, and one report."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import Part, written

ROOT = Path(__file__).resolve().parents[2]

#: Without these nothing of mpgrad runs; CuPy comes on top.
NEEDED = ("numpy", "msgspec", "psutil", "threadpoolctl", "cloudpickle")
#: Seconds that the tests, and each benchmark, may take: all together less than 8 minutes.
TESTS_S, FRONT_END_S, BENCHMARK_S = 150.0, 100.0, 40.0
BENCHMARKS = ("hand_over", "node_task", "perceptron", "resnet", "overlap")
NO_GPU = 2


def main() -> int:
    """Run what the arguments ask for; 0 if all went well, 2 where it cannot run."""
    options = _arguments()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if options.rehearse:
        environment["MPGRAD_CUDA_DRIVER"] = "fake:2"
    obstacle = _obstacle(environment)
    if obstacle:
        print(f"gpu_check: {obstacle}")
        return NO_GPU
    started = time.perf_counter()
    tests = _run_tests(environment, options.rehearse)
    print(f"tests: {tests.summary}", flush=True)
    parts = [_run_front_end(environment, options.rehearse)]
    print(f"front_end: {parts[0].summary}", flush=True)
    for name in BENCHMARKS:
        parts.append(_run_benchmark(name, environment, options.rehearse))
        print(f"{name}: {parts[-1].summary}", flush=True)
    seconds = time.perf_counter() - started
    text = written(tests, parts, _machine(environment), seconds, is_rehearsal=options.rehearse)
    options.output.write_text(text)
    print(f"{seconds:.0f} s; the report: {options.output}")
    return 0 if all(part.has_worked for part in (tests, *parts)) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "gpu-report.md", help="where to write it"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="without a GPU: the same programs at small sizes on the fake driver; what they "
        "measure says nothing",
    )
    return parser.parse_args()


def _obstacle(environment: dict[str, str]) -> str:
    """Why nothing can be run here, in one line; empty if it can."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"missing Python packages: {' '.join(missing)} (pip install them)"
    code = (
        "from mpgrad import device_arrays\n"
        "from mpgrad.shm.cuda_driver import device_count\n"
        "print(device_count() and 'ok' or device_arrays._why_there_is_none())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    said = (found.stdout.strip() or found.stderr.strip() or "mpgrad does not start").splitlines()
    return "" if said[-1] == "ok" else f"no GPU here, so nothing was run: {said[-1]}"


def _run_tests(environment: dict[str, str], is_rehearsal: bool) -> Part:
    if importlib.util.find_spec("pytest") is None:
        return Part("tests", False, "not run: pytest is not installed", {})
    which, where = "gpu", "tests/cuda"
    if is_rehearsal:
        which, where = "not gpu", "tests/cuda/test_cuda_driver.py"
    return _pytest("tests", ["-m", which, where], environment, TESTS_S)


def _run_front_end(environment: dict[str, str], is_rehearsal: bool) -> Part:
    """The tests of everything that users touch, with their tensors on the GPU."""
    where = "tests/semantics/test_views.py" if is_rehearsal else "tests/semantics"
    which = ["-p", "tests.cuda.everything_on_gpu", "-m", "not process and not gpu", where]
    environment = {"MPGRAD_CUDA_DRIVER": "cupy", **environment}
    return _pytest("front_end", which, environment, FRONT_END_S)


def _pytest(name: str, which: list[str], environment: dict[str, str], limit_s: float) -> Part:
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=20", "-p", "no:cacheprovider"]
    command += which
    try:
        run = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return Part(name, False, f"not over after {limit_s:.0f} s", {})
    lines = run.stdout.strip().splitlines() or [run.stderr.strip()]
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return Part(name, run.returncode == 0, lines[-1], {"failures": failures})


def _run_benchmark(name: str, environment: dict[str, str], is_rehearsal: bool) -> Part:
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}"]
    if is_rehearsal:
        command.append("--small")
    try:
        run = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=BENCHMARK_S,
        )
    except subprocess.TimeoutExpired:
        return Part(name, False, f"not over after {BENCHMARK_S:.0f} s", {})
    if run.returncode != 0:
        said = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
        return Part(name, False, said[-1], {"trace": run.stderr[-4000:]})
    figures: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return Part(name, True, figures.pop("summary"), figures)


def _machine(environment: dict[str, str]) -> str:
    code = (
        "import sys, numpy\n"
        "from mpgrad.shm.cuda_driver import driver\n"
        "found = driver(); p = [found.properties(i) for i in range(found.device_count())]\n"
        "names = ', '.join(f'{x.name} ({x.total_bytes >> 30} GiB)' for x in p)\n"
        "version = getattr(found.namespace, '__version__', 'fake')\n"
        "print(f'{names}; Python {sys.version.split()[0]}, NumPy {numpy.__version__}, '\n"
        "      f'CuPy {version}')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    return run.stdout.strip() or run.stderr.strip()[-300:]


if __name__ == "__main__":
    sys.exit(main())
