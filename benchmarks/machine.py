"""The machine of a measurement: processor, memory, versions, and other programs' load."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil
from threadpoolctl import threadpool_info

from mpgrad.base.machine import available_cpus, processor_name

#: The packages whose versions matter to the figures.
_PACKAGES = ("mpgrad", "numpy", "pyzmq", "msgspec")
_PEERS = ("torch", "autograd", "jax", "tensorflow", "joblib", "ray", "distributed")
#: Other programs that use a larger share of the cores disturb a measurement visibly.
_BUSY = 0.1


def describe() -> dict[str, str]:
    """Lines for the header, in order."""
    return {
        "processor": f"{processor_name()}, {available_cpus()} of {os.cpu_count()} CPUs usable",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
        "peers": ", ".join(f"{name} {_version(name)}" for name in _PEERS),
        "BLAS": _blas(),
        "commit": _commit(),
    }


def load() -> str:
    """The load of the machine, this process included."""
    one, five, fifteen = os.getloadavg()
    return f"{one:.2f}, {five:.2f}, {fifteen:.2f} (1, 5, 15 minutes)"


class OtherPrograms:
    """The share of the cores that other programs have used since this was made.

    It is the CPU time of all programs minus that of this process and its children; children count
    once they have ended.
    """

    def __init__(self) -> None:
        self._start = self._seconds()

    def share(self) -> float:
        """Between 0 and 1."""
        elapsed, others = (
            now - then for now, then in zip(self._seconds(), self._start, strict=True)
        )
        return min(1.0, max(0.0, others / (elapsed * (os.cpu_count() or 1))))

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Seconds of the clock, and of other programs' CPU time."""
        spent = psutil.cpu_times()
        everyone = sum(spent) - spent.idle - spent.iowait - spent.guest - spent.guest_nice
        own = os.times()
        return own.elapsed, everyone - sum(own[:4])


def is_busy(share: float) -> bool:
    """Whether figures measured beside this much other work should not be quoted."""
    return share > _BUSY


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package == "mpgrad":
            import mpgrad

            return mpgrad.__version__
        return "not installed"


def _blas() -> str:
    """NumPy's BLAS; each process of the benchmark gets its thread count from its engine."""
    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    # The kernels matter more than the version: AVX-512 ones are half as fast again as Haswell's.
    names = (
        f"{info['internal_api']} {info['version']}, {info.get('architecture', 'unknown')} kernels"
        for info in found
    )
    return "; ".join(names) or "none found"


def _commit() -> str:
    """The source's commit, with a mark if files differ from it."""
    root = Path(__file__).resolve().parents[1]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=10"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
