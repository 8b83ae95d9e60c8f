"""``mpgrad doctor``: what matters to worker processes on this machine, and whether they can run.

Each check tries the thing itself where that is possible, instead of asking for a version.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mpgrad import __version__
from mpgrad.base import config, machine
from mpgrad.base.duration_text import duration
from mpgrad.base.standard_streams import write

Verdict = Literal["ok", "note", "fail"]

#: Milliseconds that a message may take.
ANSWER_MS = 5_000
#: Descriptors that an engine with many workers, their pidfds, sockets and arenas may need.
_DESCRIPTORS_WANTED = 1024

#: What two processes should do of the work of one, at least.
_SPEED_UP_WANTED = 1.6

_GIB = 2**30

#: The distributions that mpgrad cannot do without, as in pyproject.toml.
_REQUIRED = ("numpy", "pyzmq", "msgspec", "threadpoolctl", "cloudpickle")

#: Column in which the details of the report begin.
_DETAIL_AT = 24
#: ANSI colours: green, yellow, red.
_COLOURS: dict[Verdict, int] = {"ok": 32, "note": 33, "fail": 31}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        subject: what was looked at.
        verdict: ``fail`` where worker processes cannot run, ``note`` where they run less well.
        detail: what was found, and the remedy unless all is well.
    """

    subject: str
    verdict: Verdict
    detail: str


def main(*, as_json: bool = False) -> int:
    """Print the report.

    Args:
        as_json: for programs and bug reports: the same as one JSON document.

    Returns:
        0 where worker processes can run here, else 1.
    """
    if as_json:
        findings = [asdict(finding) for finding in examine()]
        is_ready = all(finding["verdict"] != "fail" for finding in findings)
        print(
            json.dumps({"mpgrad": __version__, "ready": is_ready, "findings": findings}, indent=2)
        )
        return 0 if is_ready else 1
    failed = []
    for finding in examine():
        _show(finding)
        if finding.verdict == "fail":
            failed.append(finding.subject)
    if failed:
        print(f"\n{_coloured('fail', 'mpgrad cannot run workers here:')} {', '.join(failed)}")
        return 1
    print(f"\n{_coloured('ok', 'mpgrad is ready:')} backward can run in worker processes here")
    return 0


def _show(finding: Finding) -> None:
    """Print one line, folded to the terminal's width under its detail."""
    width = shutil.get_terminal_size().columns - _DETAIL_AT
    first, *others = textwrap.wrap(finding.detail, max(width, _DETAIL_AT)) or [""]
    head = f"{_coloured(finding.verdict, f'{finding.verdict:<4}')}  {finding.subject:<16}  {first}"
    for line in (head, *(" " * _DETAIL_AT + line for line in others)):
        write(sys.stdout, f"{line}\n")  # paths need not be UTF-8


def _coloured(verdict: Verdict, text: str) -> str:
    """``text`` in the colour of ``verdict``, where a terminal shows it (https://no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[1;{_COLOURS[verdict]}m{text}\x1b[0m"


def examine() -> Iterator[Finding]:
    """Run every check; one that raises is a failure that says so."""
    for subject, check in _CHECKS.items():
        try:
            verdict, detail = check()
        except Exception as error:
            verdict, detail = "fail", f"{type(error).__name__}: {error}"
        yield Finding(subject, verdict, detail)


# ---------------------------------------------------------------------------- what is installed


def _python() -> tuple[Verdict, str]:
    return "ok", f"{platform.python_version()} at {sys.executable}"


def _system() -> tuple[Verdict, str]:
    text = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform != "linux":
        return "fail", f"{text}; worker processes need Linux, elsewhere backward runs locally"
    return "ok", text


def _packages() -> tuple[Verdict, str]:
    missing = [name for name in _REQUIRED if not _is_installed(name)]
    if missing:
        return "fail", f"not installed: pip install {' '.join(missing)}"
    return "ok", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _REQUIRED)


def _blas() -> tuple[Verdict, str]:
    import numpy  # noqa: F401  (loads the library that threadpoolctl then finds)
    from threadpoolctl import threadpool_info

    from mpgrad.engine.blas import reads_again

    libraries = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not libraries:
        return "note", "none that threadpoolctl can limit: workers may use more threads than CPUs"
    detail = ", ".join(
        f"{pool['internal_api']} {pool['version']} with {pool['num_threads']} threads here "
        "(1 in each worker)"
        for pool in libraries
    )
    has_threads = [pool for pool in libraries if pool["num_threads"] > 1]
    if all(
        pool["internal_api"] != "openblas" or reads_again(ctypes.CDLL(pool["filepath"]))
        for pool in has_threads
    ):
        return "ok", detail
    return "note", (
        f"{detail}; its idle threads take cores from the workers if NumPy is imported before "
        "mpgrad: import mpgrad first, or set OPENBLAS_THREAD_TIMEOUT=18"
    )


# ------------------------------------------------------------------------ what the machine gives


def _cpus() -> tuple[Verdict, str]:
    quota = machine.cpu_quota()
    usable = machine.available_cpus()
    detail = (
        f"{os.cpu_count()} in the machine, {len(machine.processors())} by affinity, "
        f"{'no' if quota is None else f'{quota:g} by'} cgroup quota: "
        f"{config.cpu_workers() or usable} workers by default"
    )
    return (
        ("note", f"{detail}; one CPU cannot run branches side by side")
        if usable == 1
        else (
            "ok",
            detail,
        )
    )


def _topology() -> tuple[Verdict, str]:
    """What ``mpgrad run --pin`` goes by."""
    from mpgrad.base.topology import cores

    found = cores()
    threads = max(len(core.cpus) for core in found)
    nodes = len({core.node for core in found})
    return "ok", (
        f"{len(found)} core{'s' * (len(found) > 1)} with up to {threads} "
        f"thread{'s' * (threads > 1)} each, on {nodes} NUMA node{'s' * (nodes > 1)}"
    )


def _memory() -> tuple[Verdict, str]:
    total, limit = machine.installed_memory(), machine.memory_limit()
    by_cgroup = "no cgroup limit" if limit is None else f"{limit / _GIB:.1f} GiB by cgroup"
    return "ok", f"{total / _GIB:.1f} GiB, {by_cgroup}"


def _dev_shm() -> tuple[Verdict, str]:
    """For information: arenas have no names there, but share its kind of memory."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return "ok", "absent, and not needed"
    return "ok", f"{shutil.disk_usage(path).free / _GIB:.1f} GiB free (not used by mpgrad)"


def _descriptors() -> tuple[Verdict, str]:
    soft, hard = machine.resource_limits(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _DESCRIPTORS_WANTED:
        return "note", f"{soft} (hard limit {hard}); for many workers: ulimit -n 4096"
    return "ok", f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} per process"


def _gpus() -> tuple[Verdict, str]:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    cupy = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy")
        if _is_installed(name)
    ]
    if not devices:
        return "ok", "none"
    found = f"{len(devices)} NVIDIA device(s)"
    if not cupy:
        return "note", f"{found}, but no CuPy: pip install 'mpgrad[cuda12]' or 'mpgrad[cuda13]'"
    return "ok", f"{found}, {', '.join(cupy)}"


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# --------------------------------------------------------------------- what worker processes need


def _system_calls() -> tuple[Verdict, str]:
    from mpgrad.engine.kernel_calls import require_calls

    require_calls()
    return "ok", "those for shared memory, messages and processes are allowed"


def _local_sockets() -> tuple[Verdict, str]:
    """Two ends of ZeroMQ, as an engine has them: one frame there and back."""
    from mpgrad.wire.endpoint import Endpoint
    from mpgrad.wire.transport import CLIENT

    _system_calls()  # libzmq would abort this process
    endpoint = Endpoint.create()
    with (
        contextlib.closing(endpoint.router()) as router,
        contextlib.closing(endpoint.session("c0.1")) as session,
    ):
        session.send([b"there"])
        router.receive(ANSWER_MS)
        router.send(CLIENT, "c0.1", b"and back")
        if router.flush():
            return "fail", "a message over ZeroMQ did not arrive"
        session.wait(ANSWER_MS)
        if session.receive() != [b"and back"]:
            return "fail", "an answer over ZeroMQ did not arrive"
    return "ok", "ZeroMQ over Unix sockets"


def _workers() -> tuple[Verdict, str]:
    """The proof: one backward in one real worker process."""
    import mpgrad

    start = time.perf_counter()
    with mpgrad.Engine(mode="process", cpu_workers=1):
        ready = time.perf_counter() - start
        x = mpgrad.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (x * x).sum().backward()
    if x.grad is None or x.grad.numpy().tolist() != [2.0, 4.0, 6.0]:
        return "fail", f"d/dx of x*x at 1, 2, 3 came out as {x.grad}"
    return "ok", f"ready after {duration(1e6 * ready)}; a gradient came back right"


# ------------------------------------------------------------------------------- measurements


def _two_cores() -> tuple[Verdict, str]:
    """Whether two processors are two cores, or two names of one."""
    from mpgrad.launch.measurements import two_cores

    if machine.available_cpus() < 2:
        return "note", "there is one CPU"
    speed_up = two_cores().speed_up
    detail = f"two processes do {speed_up:.2f}x the work of one"
    if speed_up < _SPEED_UP_WANTED:
        return "note", (
            f"{detail}: they share a core, or others use this machine now; workers are no faster "
            "than that"
        )
    return "ok", detail


def _break_even() -> tuple[Verdict, str]:
    """What a message takes, and how long a branch must be for workers to be faster."""
    from mpgrad.launch.measurements import messages

    found = messages(config.cpu_workers() or machine.available_cpus())
    detail = f"a message takes {duration(found.message_us)}"
    if found.workers < 2:
        return "note", f"{detail}; one worker is no faster than this process"
    if found.break_even_ms is None:
        return "note", f"{detail}; workers were not faster, however long the branches"
    return "ok", (
        f"{detail}; {found.workers} workers are faster from "
        f"{duration(1e3 * found.break_even_ms)} a branch on"
    )


_CHECKS: dict[str, Callable[[], tuple[Verdict, str]]] = {
    "Python": _python,
    "system": _system,
    "packages": _packages,
    "BLAS": _blas,
    "CPUs": _cpus,
    "topology": _topology,
    "memory": _memory,
    "/dev/shm": _dev_shm,
    "open files": _descriptors,
    "GPUs": _gpus,
    "system calls": _system_calls,
    "messages": _local_sockets,
    "a worker": _workers,
    "two cores": _two_cores,
    "break-even": _break_even,
}
