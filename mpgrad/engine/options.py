"""EngineOptions: the arguments of an Engine, checked and with defaults."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpgrad.arrays.cuda.gpu_workers import gpu_workers
from mpgrad.autograd.running import engine_slot
from mpgrad.base import config, machine
from mpgrad.base.shared_cores import SharedCores, shared_cores
from mpgrad.base.standard_streams import say
from mpgrad.shm.arena import default_limit_bytes

_MODES = ("auto", "local", "process")
#: Limits of the workers and BLAS threads, and of the bytes of the shared arena.
_COUNT_MAX, _LIMIT_MAX = 1024, 1 << 50


@dataclass(frozen=True)
class EngineOptions:
    """The arguments of ``Engine``, which explains them."""

    mode: str
    cpu_workers: int
    #: For each GPU worker the number of its GPU.
    gpus: tuple[int, ...]
    #: Bytes.
    shm_limit: int
    blas_threads: int
    recover: str
    task_timeout_s: float | None
    check: str
    progress: bool
    pin: str
    #: What it reports on stderr, see MPGRAD_DEBUG.
    debug: int
    #: Whether nobody has said how many CPU workers there shall be, and who shares the cores then.
    is_default_count: bool = False
    initializer: Callable[..., Any] | None = None
    initargs: tuple[Any, ...] = ()
    shared: SharedCores | None = None
    #: The address of a cluster whose hosts run calls; which of them, and Ray's environment there.
    cluster: str | None = None
    same_arithmetic: bool = False
    runtime_env: dict[str, Any] | None = None
    min_hosts: int = 0
    max_hosts: int | None = None

    @property
    def has_checksums(self) -> bool:
        """Whether what workers publish has checksums, which readers compare."""
        return self.check == "bytes"

    @classmethod
    def checked(
        cls,
        mode: str | None,
        cpu_workers: int | None,
        gpus: str | Sequence[int],
        shm_limit: int | str | None,
        blas_threads: int,
        recover: str,
        task_timeout_s: float | None,
        check: str | None = None,
        progress: bool = False,
        pin: str | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        cluster: str | None = None,
        same_arithmetic: bool = False,
        runtime_env: dict[str, Any] | None = None,
        min_hosts: int = 0,
        max_hosts: int | None = None,
    ) -> EngineOptions:
        """The options for these arguments of ``Engine``.

        Raises:
            ValueError: an argument is out of range; the message names it.
            RuntimeError: "process" on a system other than Linux.
            TypeError: ``initializer`` is not callable.
        """
        if not engine_slot.is_worker:
            _warn_of_misspelt_settings()
        mode = _choice("mode", config.engine_mode() if mode is None else mode, _MODES)
        recover = _choice("recover", recover, ("worker", "all"))
        task_timeout_s = _seconds("task_timeout", task_timeout_s)
        # A worker has its memory set up already, and every engine in it is local.
        gpus = () if engine_slot.is_worker else gpu_workers(gpus, mode)
        asked = config.cpu_workers() if cpu_workers is None else cpu_workers
        options = cls(
            mode,
            1 if asked is None else _count("cpu_workers", asked, _COUNT_MAX),
            gpus,
            default_limit_bytes() if shm_limit is None else _bytes("shm_limit", shm_limit),
            _count("blas_threads", blas_threads, _COUNT_MAX),
            recover,
            task_timeout_s,
            _choice("check", config.check() if check is None else check, config.CHECKS),
            bool(progress),
            _choice("pin", config.pin() if pin is None else pin, config.PINS),
            config.debug(),
            asked is None,
            initializer=initializer,
            initargs=tuple(initargs),
            cluster=cluster,
            same_arithmetic=bool(same_arithmetic),
            runtime_env=runtime_env,
            min_hosts=_count("min_hosts", min_hosts, _COUNT_MAX, least=0),
            max_hosts=None if max_hosts is None else _count("max_hosts", max_hosts, _COUNT_MAX),
        )
        if options.max_hosts is not None and options.max_hosts < options.min_hosts:
            raise ValueError(
                f"Engine(min_hosts={min_hosts}, max_hosts={max_hosts}): the least is above the most"
            )
        if not isinstance(cluster, str | None):
            raise TypeError(f"Engine(cluster={cluster!r}): it must be an address, or 'auto'")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"Engine(initializer={initializer!r}): it must be callable")
        if mode == "process" and sys.platform != "linux":
            raise RuntimeError(
                f'Engine(mode="process") needs Linux; this is {sys.platform}. Use mode="local".'
            )
        return options.in_this_process()

    def in_this_process(self) -> EngineOptions:
        """The same with the default number of workers for this process, perhaps a forked one."""
        if not self.is_default_count:
            return self
        shared = shared_cores()
        cores = machine.available_cpus() if shared is None else shared.share
        return replace(self, cpu_workers=cores, shared=shared)


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"Engine({name}={value!r}): it must be one of {', '.join(allowed)}")
    return value


def _count(name: str, value: int, largest: int, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        limits = f"from {least} to {largest:,}"
        raise ValueError(f"Engine({name}={value!r}): it must be an integer {limits}")
    return value


def _bytes(name: str, value: int | str) -> int:
    if isinstance(value, str):
        try:
            value = config.parse_bytes(value)
        except ValueError as error:
            raise ValueError(f"Engine({name}={value!r}): {error}") from None
    return _count(name, value, _LIMIT_MAX)


@functools.cache
def _warn_of_misspelt_settings() -> None:
    """Once in a process."""
    for text in config.misspelt():
        say(text)


def _seconds(name: str, value: float | None) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value < float("inf")):
        raise ValueError(f"Engine({name}={value!r}): it must be a positive number of seconds")
    return value
