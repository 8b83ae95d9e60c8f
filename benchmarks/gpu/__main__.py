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
from benchmarks.gpu.suites import LIMIT_S, REHEARSAL, SUITES, end, run_suites

ROOT = Path(__file__).resolve().parents[2]

#: The modules that mpgrad needs, and their packages; CuPy is needed in addition.
NEEDED = {
    "numpy": "numpy",
    "zmq": "pyzmq",
    "msgspec": "msgspec",
    "threadpoolctl": "threadpoolctl",
    "cloudpickle": "cloudpickle",
}
#: Seconds that each benchmark may take; with the suites' limit less than 8 minutes in total.
BENCHMARK_S = 50.0
BENCHMARKS = ("hand_over", "node_task", "perceptron", "resnet", "overlap")
NO_GPU = 2


def main() -> int:
    """Run the chosen tests and benchmarks; 0 if all succeeded, 2 if they cannot run here."""
    options = _arguments()
    # Packages may be on the caller's path only.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    if options.rehearse:
        environment["MPGRAD_CUDA_DRIVER"] = "tests.cuda.fake_driver:two_gpus"
    obstacle = _obstacle(environment)
    if obstacle:
        print(f"gpu_check: {obstacle}")
        return NO_GPU
    started = time.perf_counter()
    suites = REHEARSAL if options.rehearse else SUITES
    print(f"{len(suites)} test suites, at most {LIMIT_S:.0f} s", flush=True)
    parts = []
    for part in run_suites(suites, ROOT, environment):
        parts.append(part)
        print(f"{part.name}: {part.summary}", flush=True)
    for name in BENCHMARKS:
        parts.append(_run_benchmark(name, environment, options.rehearse))
        print(f"{name}: {parts[-1].summary}", flush=True)
    seconds = time.perf_counter() - started
    text = written(parts, _machine(environment), seconds, is_rehearsal=options.rehearse)
    options.output.write_text(text)
    print(f"{seconds:.0f} s; the report: {options.output}")
    return 0 if all(part.has_worked for part in parts) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "docs" / "evidence" / "gpu-report.md",
        help="where to write it",
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="without a GPU: the same programs at small sizes on the fake driver; what they "
        "measure says nothing",
    )
    return parser.parse_args()


def _obstacle(environment: dict[str, str]) -> str:
    """The reason why nothing can run here, in one line; empty if there is none."""
    missing = [name for module, name in NEEDED.items() if not importlib.util.find_spec(module)]
    if missing:
        return f"missing Python packages: {' '.join(missing)} (pip install them)"
    code = (
        "from mpgrad.arrays.cuda import device_arrays\n"
        "from mpgrad.arrays.cuda.cuda_driver import device_count\n"
        "print(device_count() and 'ok' or device_arrays._why_there_is_none())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    said = (found.stdout.strip() or found.stderr.strip() or "mpgrad does not start").splitlines()
    return "" if said[-1] == "ok" else f"no GPU here, so nothing was run: {said[-1]}"


def _run_benchmark(name: str, environment: dict[str, str], is_rehearsal: bool) -> Part:
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}"]
    if is_rehearsal:
        command.append("--small")
    run = subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = run.communicate(timeout=BENCHMARK_S)
    except subprocess.TimeoutExpired:
        end(run)  # with its child processes, which would disturb the next one
        _, errors = run.communicate()
        return Part(name, False, f"not over after {BENCHMARK_S:.0f} s", {"trace": errors[-4000:]})
    if run.returncode != 0:
        said = errors.strip().splitlines() or [f"exit status {run.returncode}"]
        return Part(name, False, said[-1], {"trace": errors[-4000:]})
    figures: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return Part(name, True, figures.pop("summary"), figures)


def _machine(environment: dict[str, str]) -> str:
    code = (
        "import sys, numpy\n"
        "from mpgrad.arrays.cuda.cuda_driver import driver\n"
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
