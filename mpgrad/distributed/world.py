"""The world: all ranks that meet at one address, once, whatever they then do with each other.

Process groups and remote calls that meet there share one carrier and one thread. A process may be
in several worlds: one of trainers for collectives, say, and one of all processes for calls.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np

from mpgrad.base.machine import processor_name
from mpgrad.base.standard_streams import say
from mpgrad.distributed.carrier.contract import HostCarrier
from mpgrad.distributed.group_key import group_key
from mpgrad.distributed.member_thread import MemberThread
from mpgrad.distributed.rendezvous import meet
from mpgrad.engine.blas import blas_of_arrays

#: Set by the launcher, as ``torchrun`` sets it.
RESTARTS_MAX = "TORCHELASTIC_MAX_RESTARTS"


class Whereabouts(NamedTuple):
    """Which rank this process is, and where rank 0 listens."""

    rank: int
    world_size: int
    master: tuple[str, int]


class _Joined:
    """This process's threads in its worlds."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: By where rank 0 listens.
        self.threads: dict[tuple[str, int], MemberThread] = {}
        #: The world that the process group needs, and that which remote calls need.
        self.needed: list[MemberThread] = []
        #: What was last said of ranks that compute otherwise than this one.
        self.said = ""
        #: Threads of the parent process: a forked child must not touch what belongs to them.
        self.of_parents: list[object] = []

    def start_anew_in_child(self) -> None:
        self.of_parents.append(self.threads)
        self.lock, self.threads, self.needed = threading.RLock(), {}, []


_joined = _Joined()
os.register_at_fork(after_in_child=_joined.start_anew_in_child)


def join_world(
    where: Whereabouts, timeout_s: float, *, encrypt: bool, reopens: bool = False
) -> MemberThread:
    """Meet the other ranks, unless this process has, there; ``leave_world`` undoes it.

    Args:
        where: this process's rank, and where rank 0 listens.
        timeout_s: how long to wait.
        encrypt: see ``init_process_group``.
        reopens: under ``mpgrad run --max-restarts``, a rank that is started again takes its place
            among those that live on; else they all meet again.

    Raises:
        RendezvousTimeout: not all ranks came.
        RuntimeError: rank 0 refused this process.
        ValueError: there is no key, or this process is another rank already.
    """
    with _joined.lock:
        thread = _joined.threads.get(where.master)
        if thread is None:
            key = group_key(encrypt=encrypt, host=where.master[0])

            def make_carrier(name: str, host: str, port: int) -> HostCarrier:
                # A process without a group loads no ZeroMQ.
                from mpgrad.distributed.carrier.zeromq_carrier import ZmqHostCarrier

                return ZmqHostCarrier(key, name, host, port, encrypt=encrypt)

            meeting = meet(
                make_carrier,
                *where,
                timeout_s,
                arithmetic=arithmetic_of_this_process(),
                restarts=restarts_max() > 0,
                reopens=reopens and restarts_max() > 0,
            )
            if meeting.differences not in ("", _joined.said):
                _joined.said = meeting.differences
                say(f"bits may differ between ranks: {meeting.differences}")
            thread = _joined.threads[where.master] = MemberThread(where.rank, meeting)
        elif (thread.member.rank, thread.member.ranks) != where[:2]:
            raise ValueError(
                f"this process is rank {thread.member.rank} of {thread.member.ranks} already, and "
                f"cannot be rank {where.rank} of {where.world_size}, too"
            )
        _joined.needed.append(thread)
        return thread


def leave_world(thread: MemberThread) -> None:
    """Say farewell to the ranks of a world, if nobody in this process needs them any more."""
    with _joined.lock:
        _joined.needed.remove(thread)
        if thread not in _joined.needed:
            _joined.threads = {at: it for at, it in _joined.threads.items() if it is not thread}
            thread.leave()


@atexit.register
def _leave_at_exit() -> None:
    for thread in [*_joined.threads.values()]:
        thread.leave()


def has_both() -> bool:
    """Whether this process has both, a process group and remote calls."""
    return len(_joined.needed) > 1


def restarts_max() -> int:
    """How many dead ranks of this host ``mpgrad run --max-restarts`` starts again."""
    text = os.environ.get(RESTARTS_MAX, "")
    return int(text) if text.isdecimal() else 0


def whereabouts(method: str, rank: int, world_size: int) -> Whereabouts:
    """Which rank this process is, and where rank 0 listens.

    Args:
        method: ``env://`` or ``tcp://host:port``.
        rank: negative to have it read.
        world_size: less than 1 to have it read.

    Raises:
        ValueError: something is missing or wrong.
    """
    url = urlsplit(method)
    if url.scheme == "tcp":
        query = parse_qs(url.query)
        rank = int(query["rank"][0]) if "rank" in query else rank
        world_size = int(query["world_size"][0]) if "world_size" in query else world_size
        if rank < 0 or world_size < 1:
            missing = "rank" if rank < 0 else "world_size"
            raise ValueError(f"Error initializing using tcp:// : {missing} parameter missing")
        if url.hostname is None or url.port is None:
            raise ValueError(f"init_method {method!r} has to be tcp://host:port")
        master = url.hostname, url.port
    elif url.scheme == "env":
        rank = rank if rank >= 0 else _number("RANK")
        world_size = world_size if world_size >= 1 else _number("WORLD_SIZE")
        master = _of_environment("MASTER_ADDR"), _number("MASTER_PORT")
    else:
        raise ValueError(f"init_method {method!r}: only env:// and tcp://host:port are here")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not below the world size, {world_size}")
    return Whereabouts(rank, world_size, master)


def _number(name: str) -> int:
    text = _of_environment(name)
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r}: expected a whole number")
    return int(text)


def _of_environment(name: str) -> str:
    text = os.environ.get(name, "").strip()
    if not text:
        raise ValueError(
            "Error initializing mpgrad.distributed using env:// rendezvous: environment variable "
            f"{name} expected, but not set; `mpgrad run --nproc-per-node N` sets it"
        )
    return text


def arithmetic_of_this_process() -> tuple[tuple[str, str], ...]:
    """What decides how the numbers of a rank round: (what, which), in the same order everywhere.

    Two ranks that differ in it may have other bits.
    """
    blas, threads = blas_of_arrays()
    return (
        ("the processor", processor_name()),
        ("the NumPy", np.__version__),
        ("the BLAS", blas),
        ("the number of BLAS threads", str(threads)),
    )
