"""Engine: the user's interface to the executor, and the current engine.

The part that runs a backward (``engine.execution``) is loaded with the first one, or while the
processes start, which would otherwise wait for it.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mpgrad.autograd.running import engine_slot
from mpgrad.autograd.running.collector import collector_held
from mpgrad.base.html_text import preformatted
from mpgrad.base.interpreter import require_no_mark
from mpgrad.base.user_frames import level_of_caller
from mpgrad.engine.options import EngineOptions
from mpgrad.errors import EngineClosed
from mpgrad.recording.tensors.tensor import Tensor

if TYPE_CHECKING:
    from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
    from mpgrad.engine.cluster.host_calls import HostCalls
    from mpgrad.engine.coordinator_start import CoordinatorProcess
    from mpgrad.engine.engine_statistics import EngineStatistics
    from mpgrad.engine.execution import Execution
    from mpgrad.engine.explanation import Explanation


class Engine:
    """Executes backward passes in this process or in worker processes, whichever is faster.

    It is a context manager; engines nest, and the innermost one is current. Without an engine, a
    default engine in ``auto`` mode serves every backward.

    Args:
        mode: "local" runs everything in this process, "process" in worker processes, and "auto" in
            workers if the predicted time is clearly shorter. Default: MPGRAD_ENGINE or "auto".
        cpu_workers: number of CPU workers; default MPGRAD_CPU_WORKERS or the available cores,
            shared with the processes that multiprocessing, joblib, pytest-xdist, gunicorn or
            torchrun have started beside this one.
        gpus: for each GPU worker the number of its GPU: ``[0, 1]``, or ``[0, 0]`` for two on one
            GPU; "all"; "none"; or "auto" (default; MPGRAD_GPUS), which means all in mode "process"
            if this process has used a GPU before, else none. GPU workers are used in mode
            "process" only; in other modes this process does their work. Tensors made on a GPU
            while such an engine exists are shared with its workers, older ones are copied.
        shm_limit: bytes that the workers' shared arena may hold, or a text such as "4G"; default
            MPGRAD_SHM_LIMIT or a share of the machine's memory.
        blas_threads: BLAS threads while a rule runs, in workers and in ``local``.
        recover: "worker" replaces workers that die and runs their tasks again; "all" also starts
            the engine again when the coordinator dies, and runs the backward again (unless hooks
            or Functions have already run in this process: those never run twice).
        task_timeout: seconds that a worker may take for one NodeTask. If it takes longer, the
            worker is killed and the task run again; the second time the backward fails with
            ``errors.TaskTimedOut``. Tasks in this process are not limited. Default: no limit.
        check: which Functions that a worker has run are run again in this process, where they must
            give the same bits: one in 1000 ("sample"; but for those with ``run_on``, whose promise
            is yours), every one ("all"), or none ("off"). The first difference is an
            ``errors.ResultsDiffer``. "bytes" is "sample", and each block of shared memory that a
            worker publishes gets a checksum, which every reader compares: bytes that have changed
            are an ``errors.BytesCorrupted``. Default: MPGRAD_CHECK or "sample".
        progress: whether a backward in workers that takes longer than half a second shows how far
            it is: on stderr if that is a terminal, in a notebook under the cell.
        pin: what each CPU worker is bound to: "none" leaves that to the system; "cores" gives each
            a core with all its threads, on one NUMA node after the other (if there are more workers
            than cores: a thread); "nodes" the processors of one NUMA node. GPU workers are not
            bound. Default: MPGRAD_PIN or "none".
        initializer: is called once in each worker, also in one that replaces another, before user
            code runs there, and in this process when that runs user code of ``parallel_map`` or
            ``fork``. The globals that it assigns stay in their process: a warm simulator, a
            licence, a cache.
        initargs: its arguments.
        cluster: the address of a Ray cluster, as ``ray.init`` takes it, or "auto". The calls of
            ``parallel_map`` and ``fork`` run on its hosts, each of which gets an engine with
            ``cpu_workers`` workers (default: its CPUs). All else runs here.
        same_arithmetic: leave out hosts of the cluster whose processor or BLAS is another one than
            here, or whose versions are. Otherwise a warning names them once.
        runtime_env: of the processes on the cluster's hosts, as Ray takes it.
        min_hosts: Ray's autoscaler is asked to keep so many hosts. Default: it is not asked.
        max_hosts: no more hosts take part, and up to so many Ray's autoscaler is asked for those
            that the waiting calls need. Default: all take part, and it is not asked for more.

    Raises:
        ValueError: an argument is out of range.
        TypeError: there is no such argument.
        ModuleNotFoundError: ``cluster`` needs Ray.
        RuntimeError: "process" on a system other than Linux; or this process was meant to be a
            child of an engine (``sys.executable`` is the application itself).
    """

    def __new__(cls, *args: Any, **options: Any) -> Engine:
        known = cls.__init__.__code__.co_varnames[: cls.__init__.__code__.co_argcount]
        for name in options:
            if name not in known:
                raise TypeError(_unknown_option(name, known[1:]))
        return super().__new__(cls)

    def __init__(
        self,
        mode: str | None = None,
        cpu_workers: int | None = None,
        gpus: str | tuple[int, ...] | list[int] = "auto",
        shm_limit: int | str | None = None,
        blas_threads: int = 1,
        recover: str = "worker",
        task_timeout: float | None = None,
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
    ) -> None:
        require_no_mark()
        self._options = EngineOptions.checked(
            mode,
            cpu_workers,
            gpus,
            shm_limit,
            blas_threads,
            recover,
            task_timeout,
            check,
            progress,
            pin,
            initializer,
            initargs,
            cluster,
            same_arithmetic,
            runtime_env,
            min_hosts,
            max_hosts,
        )
        self._made: Execution | None = None
        # Re-entrant: a handler of a signal may run a backward while its thread makes this.
        self._making = threading.RLock()
        self._is_closed = False
        self._pid = os.getpid()
        _engines.add(self)
        _unused.add(self)

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Engine:
        self._check_open()
        if self._needs_processes():
            self._start()
        if self._needs_hosts():
            _ = self._execution  # they start with it
        _unused.discard(self)
        _stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack.remove(self)
        self.close()

    def close(self) -> None:
        """End all processes. Tensors and ``.grad`` stay readable; a second call does nothing."""
        self._is_closed = True
        _unused.discard(self)
        if self._pid == os.getpid() and self._made is not None:
            self._made.sessions.close()
            self._made.submitter.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineClosed(
                "this Engine is closed; make a new one, or use it inside its `with` block"
            )
        if self._pid != os.getpid():
            self._restart_in_child()

    def _restart_in_child(self) -> None:
        """After a fork the processes belong to the parent; the child starts its own if needed."""
        self._making = threading.RLock()  # another thread may have been inside
        self._options = self._options.in_this_process()
        if self._made is not None:
            self._made.start_anew_in_child(self._options, partial(_spawn, self._options))
        self._pid = os.getpid()

    @property
    def _execution(self) -> Execution:
        """The part that runs backwards, made when it is first needed."""
        if self._made is None:
            with self._making:
                if self._made is None:
                    made = self._load()
                    self._made = self._made or made  # a handler's backward may have made it
        return self._made

    @collector_held()
    def _load(self) -> Execution:
        from mpgrad.engine.execution import Execution

        hosts = _hosts(self._options) if self._needs_hosts() else None
        return Execution(self._options, partial(_spawn, self._options), hosts)

    def _needs_hosts(self) -> bool:
        return self._options.cluster is not None and self.mode != "local"

    def _needs_processes(self) -> bool:
        is_asked = self.mode == "process" and self._options.cluster is None
        return is_asked and sys.platform == "linux" and not engine_slot.is_local()

    def _start(self) -> None:
        """Start the processes if they are not running; load the code that uses them meanwhile."""
        spawned = _spawn(self._options) if self._made is None else None
        try:
            sessions = self._execution.sessions
        except BaseException:
            if spawned is not None:
                spawned.discard()
            raise
        sessions.start(spawned)

    # ------------------------------------------------------------------ one backward

    def execute(self, frozen: FrozenGraph) -> list[tuple[Any, bool]]:
        """Run a frozen graph; see ``autograd.running.engine_slot``."""
        self._check_open()
        if self._made is None and self._needs_processes():
            self._start()
        return self._execution.execute(frozen)

    def execution_for_calls(self) -> Execution:
        """The part that runs calls forward, for ``mpgrad.parallel``."""
        self._check_open()
        if self._made is None and self._needs_processes():
            self._start()
        return self._execution

    def execute_recorded(
        self, frozen: FrozenGraph, seeds: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Run a frozen graph under ``create_graph``; see ``autograd.higher_order.recording``."""
        self._check_open()
        return self._execution.execute_recorded(frozen, seeds)

    # ------------------------------------------------------------------ questions

    def explain(self, tensor: Tensor, *, source: bool = False) -> Explanation:
        """Where each Node behind ``tensor`` would run and why; runs nothing.

        Args:
            tensor: the root.
            source: also show the source that ``local`` runs for a cached graph.

        Raises:
            RuntimeError: ``tensor`` does not require grad.
        """
        self._check_open()
        _unused.discard(self)
        return self._execution.explain(tensor, source)

    def statistics(self) -> EngineStatistics:
        """Counters and memory figures as of now."""
        return self._execution.statistics()

    def worker_pids(self) -> list[int]:
        """Process ids of the workers, by slot; empty while none runs."""
        processes = self._made.processes() if self._made is not None else None
        return [] if processes is None else list(processes.worker_pids)

    @property
    def coordinator_pid(self) -> int | None:
        """Process id of the coordinator; None while none runs."""
        return self._made.sessions.coordinator_pid if self._made is not None else None

    @property
    def mode(self) -> str:
        """ "local", "process" or "auto"."""
        return self._options.mode

    @property
    def cpu_workers(self) -> int:
        """The number of its CPU workers when they run."""
        if self._pid != os.getpid():
            self._restart_in_child()
        return self._options.cpu_workers

    @property
    def gpus(self) -> tuple[int, ...]:
        """For each GPU worker the number of its GPU."""
        return self._options.gpus

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Engine mode={self.mode!r} cpu_workers={self.cpu_workers} {state}>"

    def _repr_html_(self) -> str:
        """For notebooks: what it is, and what it has done."""
        done = "" if self._made is None or self._is_closed else self.statistics()._repr_html_()
        return f"{preformatted(repr(self))}{done}"


def _unknown_option(name: str, known: Sequence[str]) -> str:
    import difflib  # seldom needed

    like = difflib.get_close_matches(name, known, 1)
    hint = f". Did you mean {like[0]!r}?" if like else f"; there are {', '.join(known)}"
    return f"Engine() got an unexpected keyword argument {name!r}{hint}"


def _spawn(options: EngineOptions) -> CoordinatorProcess:
    """A new coordinator. The code that starts it is loaded when it is needed."""
    with collector_held():
        from mpgrad.engine.coordinator_start import CoordinatorProcess

        return CoordinatorProcess(options)


def _hosts(options: EngineOptions) -> HostCalls:
    """The hosts of a cluster, started."""
    if importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError(
            f"Engine(cluster={options.cluster!r}) needs Ray: pip install 'mpgrad[ray]'"
        )
    from mpgrad.engine.cluster.ray_hosts import hosts_of

    hosts = hosts_of(options)
    hosts.start()
    return hosts


# ---------------------------------------------------------------------- the current engine

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
#: Those that nobody has entered, set or asked yet.
_unused: weakref.WeakSet[Engine] = weakref.WeakSet()
#: Engines that are inside their `with` block, innermost last; shared by all threads.
_stack: list[Engine] = []
#: What ``set_engine`` was given.
_set: Engine | None = None
_default: Engine | None = None
#: Re-entrant, as the lock that an Engine has.
_default_lock = threading.RLock()


def current_engine() -> Engine:
    """The innermost engine in a ``with`` block, else the one that ``set_engine`` was given, else
    the default one (made on first use)."""
    global _default
    if _stack:
        return _stack[-1]
    chosen = _set
    if chosen is not None and not chosen._is_closed:
        return chosen
    if _unused:
        _warn_of_unused()
    with _default_lock:
        if _default is None or _default._is_closed:
            made = Engine()
            _unused.discard(made)
            if _default is None or _default._is_closed:  # else a handler's backward has made it
                _default = made
        return _default


def _warn_of_unused() -> None:
    """Once for each engine that was made, and does not serve the backward that runs now."""
    for engine in list(_unused):
        _unused.discard(engine)
        warnings.warn(
            f"{engine!r} is not in use: this backward runs on the default engine. `with engine:` "
            "or mpgrad.set_engine(engine) makes it the current one",
            stacklevel=level_of_caller(),
        )


def set_engine(engine: Engine | None) -> None:
    """Let ``engine`` serve every backward outside of a ``with`` block, on all threads.

    Its processes start with the first backward that needs them and end with the program, or with
    its ``close()``; the default engine takes its place then. They also end when another engine was
    set and nothing refers to this one any more.

    Args:
        engine: None: the default engine again.

    Raises:
        TypeError: it is no Engine.
        EngineClosed: it is closed.
    """
    global _set
    if engine is not None:
        if not isinstance(engine, Engine):
            raise TypeError(f"set_engine() wants an Engine or None, not {type(engine).__name__}")
        engine._check_open()
        _unused.discard(engine)
    _set = engine


def _close_all() -> None:
    for engine in list(_engines):
        engine.close()


def _forget_lock_in_child() -> None:
    global _default_lock
    _default_lock = threading.RLock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_lock_in_child)
engine_slot.install(current_engine)
