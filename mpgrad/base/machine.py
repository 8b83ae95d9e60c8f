"""The CPUs and the memory that this process may use. Standard library only.

In a container the kernel shows all CPUs and all memory; the limits are in the files of the cgroup.
A limit holds for every group below the one that sets it. So each file is read along the path from
the process's group up to the root, and the smallest limit counts.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import TypeAlias

# Not pathlib, which would take a tenth of the time of importing mpgrad.
StrPath: TypeAlias = str | os.PathLike[str]

_CGROUP_ROOT = "/sys/fs/cgroup"
_MEMBERSHIP = "/proc/self/cgroup"


def processor_name() -> str:
    """The kind of this machine's processors, in its maker's words."""
    with contextlib.suppress(OSError):
        for line in _text("/proc/cpuinfo").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine


def available_cpus() -> int:
    """The whole CPUs that this process may use: affinity and cgroup quota, at least 1."""
    cpus, quota = len(processors()), cpu_quota()
    return max(1, cpus if quota is None else min(cpus, int(quota)))


def processors(pid: int = 0) -> set[int]:
    """The numbers of the processors that a process may use (0: this one), by its affinity.

    They are all of the machine where nobody says that: on other systems, and where a sandbox
    refuses the question.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        return os.sched_getaffinity(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return set(range(os.cpu_count() or 1))


def cpu_quota(root: StrPath = _CGROUP_ROOT, membership: StrPath = _MEMBERSHIP) -> float | None:
    """CPUs that the cgroup allows, as a fraction; None without a limit."""
    quotas = [
        *(_quota_v2(text) for text in _files("", "cpu.max", root, membership)),
        *(
            _quota_v1(microseconds, period)
            for microseconds, period in zip(
                _files("cpu", "cpu.cfs_quota_us", root, membership),
                _files("cpu", "cpu.cfs_period_us", root, membership),
                strict=False,
            )
        ),
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: StrPath = _CGROUP_ROOT, membership: StrPath = _MEMBERSHIP) -> int | None:
    """Bytes of memory that the cgroup allows; None without a limit."""
    texts = [
        *_files("", "memory.max", root, membership),
        *_files("memory", "memory.limit_in_bytes", root, membership),
    ]
    # "max" (v2) and a number near 2**63 (v1) both mean: no limit.
    limits = [int(text) for text in texts if text.isdigit() and int(text) < 2**60]
    return min(limits, default=None)


def mappable_bytes() -> int | None:
    """The bytes that one more shared mapping of this process may have; None without a limit.

    ``ulimit -f`` limits every file, even one without a name. ``ulimit -v`` limits the address
    space: a mapping gets a quarter of the rest, since heaps and other mappings need address space.
    """
    import resource  # imported here: only processes that make shared memory need it

    file_size, _ = resource_limits(resource.RLIMIT_FSIZE)
    allowed = [] if file_size == resource.RLIM_INFINITY else [file_size]
    address_space, _ = resource_limits(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        allowed.append(max(0, address_space - mapped) // 4)
    return min(allowed, default=None)


def resource_limits(kind: int) -> tuple[int, int]:
    """The soft and the hard limit of this process; no limit where a sandbox refuses the question.

    Args:
        kind: ``resource.RLIMIT_...``.
    """
    import resource

    try:
        return resource.getrlimit(kind)
    except OSError:
        return resource.RLIM_INFINITY, resource.RLIM_INFINITY


def installed_memory(meminfo: StrPath = "/proc/meminfo") -> int:
    """The bytes of this machine's memory.

    A file is asked first: the C library does not notice that ``sysinfo`` is refused, and
    ``os.sysconf`` then gives any number.
    """
    with contextlib.suppress(OSError):
        for line in _text(meminfo).splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def memory_total() -> int:
    """Bytes that all processes may use together: the machine's, or those of the cgroup, when they
    are first asked for."""
    installed = installed_memory()
    return min(installed, memory_limit() or installed)


def oom_kills(
    root: StrPath = _CGROUP_ROOT,
    membership: StrPath = _MEMBERSHIP,
    vmstat: StrPath = "/proc/vmstat",
) -> int:
    """The number of the kernel's out-of-memory kills so far.

    They are counted in this process's cgroup if the kernel does that, else on the whole machine;
    0 if the number is unknown.
    """
    texts = [
        *_files("", "memory.events", root, membership),
        *_files("memory", "memory.oom_control", root, membership),
    ]
    with contextlib.suppress(OSError):
        texts.append(_text(vmstat))
    for text in texts:
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _files(controller: str, name: str, root: StrPath, membership: StrPath) -> Iterator[str]:
    """The contents of file ``name`` in each cgroup from this process's up to the root.

    ``controller`` is empty for cgroup v2, which has one hierarchy for all of them.
    """
    group = _group(controller, membership)
    # Inside a container the path may be the host's and not exist: then the root counts.
    while group:
        with contextlib.suppress(OSError):
            yield _text(os.path.join(root, controller, group.lstrip("/"), name)).strip()
        group = os.path.dirname(group) if group != "/" else None


def _group(controller: str, membership: StrPath) -> str | None:
    try:
        lines = _text(membership).splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _text(path: StrPath) -> str:
    with open(path) as file:
        return file.read()


def _quota_v2(text: str) -> float | None:
    quota, _, period = text.partition(" ")
    return None if quota == "max" else int(quota) / int(period or 100_000)


def _quota_v1(quota: str, period: str) -> float | None:
    return int(quota) / int(period) if int(quota) > 0 else None
