"""init_rpc(), rpc_sync(), rpc_async(), remote(), shutdown(): calls from host to host."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from mpgrad.distributed.futures import Future
from mpgrad.distributed.rpc.current_service import DEFAULT, TIMEOUT_S, current, seconds, service
from mpgrad.distributed.rpc.remote_reference import RRef, reduced, remote_reference
from mpgrad.distributed.rpc.service import PAUSE_S, RpcService, WorkerInfo
from mpgrad.distributed.world import join_world, leave_world, whereabouts
from mpgrad.errors import CollectiveTimeout, RendezvousTimeout

#: Seconds that all processes have to call ``init_rpc``.
MEETING_S = 300.0
#: Seconds that a process which leaves has to answer what others have called.
_DRAIN_S_MAX = 5.0


class BackendType(Enum):
    """What carries calls: PyTorch's name for the one way that is here, ZeroMQ over TCP."""

    TENSORPIPE = "TENSORPIPE"


class RpcBackendOptions:
    """How calls are made.

    Args:
        rpc_timeout: seconds that a call may take by default; 0 for any time.
        init_method: as in ``init_process_group``.
        encrypt: as in ``init_process_group``.
        num_worker_threads: changes nothing: there are as many threads as calls.
        device_maps: changes nothing.
        devices: changes nothing.
    """

    def __init__(
        self,
        rpc_timeout: float = TIMEOUT_S,
        init_method: str = "env://",
        *,
        encrypt: bool = True,
        num_worker_threads: int = 16,
        device_maps: Any = None,
        devices: Any = None,
    ) -> None:
        self.rpc_timeout, self.init_method, self.encrypt = rpc_timeout, init_method, encrypt


#: PyTorch's name.
TensorPipeRpcBackendOptions = RpcBackendOptions


def init_rpc(
    name: str,
    backend: BackendType | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Take calls under ``name``, and wait until all other processes do so under theirs.

    Under ``mpgrad run --max-restarts``, a process that is started again comes to the others that
    live on, unless ``init_process_group`` was called first.

    Args:
        name: another one in each process.
        backend: there is but one; as in PyTorch.
        rank: of this process; by default RANK.
        world_size: how many processes there are; by default WORLD_SIZE.
        rpc_backend_options: the timeout of calls, and where to meet.

    Raises:
        RuntimeError: RPC is initialized already, or the name is another process's, too.
        RendezvousTimeout: not all processes came.
        HostLost: one has died meanwhile.
        ValueError: something is missing or wrong.
        TypeError: ``backend`` or ``rpc_backend_options`` is something else.
    """
    if not isinstance(backend, BackendType | None):
        raise TypeError(f"Argument backend must be a member of BackendType, not {backend!r}")
    if not isinstance(rpc_backend_options, RpcBackendOptions | None):
        raise TypeError(
            "Argument rpc_backend_options must be an instance of RpcBackendOptions, not "
            f"{rpc_backend_options!r}"
        )
    if current.service is not None:
        raise RuntimeError("RPC is already initialized: call shutdown() before init_rpc()")
    if not name or not isinstance(name, str):
        raise ValueError(f"the name of an RPC process is a text, not {name!r}")
    options = rpc_backend_options or RpcBackendOptions()
    where = whereabouts(options.init_method, rank, -1 if world_size is None else world_size)
    thread = join_world(where, MEETING_S, encrypt=options.encrypt, reopens=True)
    try:
        here = RpcService(thread, name, reduced, reopens=thread.reopens)
        # Calls of others may come before all are ready.
        current.service, current.timeout_s = here, options.rpc_timeout
        here.begin()
        if not here.all_ready.wait(MEETING_S):
            raise RendezvousTimeout("not all processes have called init_rpc()")
        names = [info.name for info in here.infos()]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise RuntimeError(f"RPC worker name {twice[0]} is not unique: {names}")
    except BaseException:
        current.service = None
        leave_world(thread)
        raise


def shutdown(graceful: bool = True, timeout: float = 0) -> None:
    """Take no more calls.

    Args:
        graceful: first wait until all processes come here and no call is under way.
        timeout: seconds to wait; 0 for any time.

    Raises:
        HostLost: a process died before it came here, and none is started in its place.
        CollectiveTimeout: it took too long.
    """
    here = service()
    try:
        if graceful:
            _wait_until_idle(here, time.monotonic() + timeout if timeout else math.inf)
    finally:
        here.drain(_DRAIN_S_MAX)
        here.end()
        current.service = None
        leave_world(here.thread)


def _wait_until_idle(here: RpcService, deadline: float) -> None:
    """Until nobody has anything to do."""
    while True:
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        try:
            if here.report_idle().wait(left):
                return
        except TimeoutError:
            raise CollectiveTimeout("shutdown: not all processes came and were idle") from None
        time.sleep(PAUSE_S)


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """The process of that name.

    Args:
        worker_name: as given to ``init_rpc``; default: this process's.

    Raises:
        RuntimeError: nobody has that name, or ``init_rpc`` has not been called.
    """
    infos = service().infos()
    if worker_name is None:
        return infos[service().rank]
    for info in infos:
        if info.name == worker_name:
            return info
    raise RuntimeError(f"could not find destination {worker_name!r}: there are {infos}")


def rpc_async(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = DEFAULT,
    *,
    repeat: bool = False,
) -> Future:
    """Call ``func`` in another process, or in this one; the Future of its result.

    Args:
        to: name, rank or WorkerInfo.
        func: a callable; it goes by its name where the other process can import it.
        args: its arguments.
        kwargs: its named arguments.
        timeout: seconds; 0 for any time, by default that of ``init_rpc``.
        repeat: ``func`` changes nothing where it runs. If that process dies before it answers, and
            another one is started in its place, ``func`` is called there with the same arguments.
            In an autograd context this also holds until its first backward has ended.

    Raises:
        TypeError: ``func`` is not callable, or an argument cannot travel.
        ValueError: ``to`` is something else.
        RuntimeError: there is no such process.
    """
    if not callable(func):
        raise TypeError(f"function should be callable, got {func!r}")
    here = service()
    rank = _rank(here, to)
    return here.calls.make(rank, func, args or (), kwargs or {}, seconds(timeout), repeats=repeat)


def rpc_sync(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = DEFAULT,
    *,
    repeat: bool = False,
) -> Any:
    """Call ``func`` in another process, and wait for its result.

    Args:
        to, func, args, kwargs, timeout, repeat: as for :func:`rpc_async`.

    Returns:
        What ``func`` returns.

    Raises:
        TypeError: ``func`` is not callable, or an argument cannot travel.
        HostLost: that process has died.
        RuntimeError: the call took too long.
        Exception: what ``func`` has raised, with the remote traceback as its cause.
    """
    return rpc_async(to, func, args, kwargs, timeout, repeat=repeat).wait()


def remote(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = DEFAULT,
    *,
    repeat: bool = False,
) -> RRef:
    """Call ``func`` in another process, where its result stays.

    Args:
        to, func, args, kwargs, timeout, repeat: as for :func:`rpc_async`.

    Returns:
        A reference to the result, at once; ``to_here()`` waits for it, and raises what ``func``
        has raised.

    Raises:
        TypeError: ``func`` is not callable, or an argument cannot travel.
        ValueError: ``to`` is something else.
        RuntimeError: there is no such process.
    """
    if not callable(func):
        raise TypeError(f"function should be callable, got {func!r}")
    here = service()
    return remote_reference(
        here, _rank(here, to), func, args or (), kwargs or {}, timeout, repeats=repeat
    )


def _rank(here: RpcService, to: str | int | WorkerInfo) -> int:
    if isinstance(to, WorkerInfo):
        return to.id
    if isinstance(to, str):
        return get_worker_info(to).id
    if not isinstance(to, int):
        raise ValueError(f"Cannot get WorkerInfo from name {to!r}, which is no name and no rank")
    if 0 <= to < here.ranks:
        return to
    raise RuntimeError(f"could not find destination {to!r}: there are {here.infos()}")
