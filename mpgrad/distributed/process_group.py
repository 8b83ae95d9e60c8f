"""Process groups: the ranks of a program, as ``torch.distributed`` names them.

A program has one default group, the world. ``new_group`` makes others of some of its ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from mpgrad.distributed.backend_names import LANES, is_known
from mpgrad.distributed.group_member import GroupTable
from mpgrad.distributed.member_thread import MemberThread
from mpgrad.distributed.operation import Operation, Work
from mpgrad.distributed.parcels import PendingReceive
from mpgrad.distributed.states.reduction_tree import all_reduce_steps, segments
from mpgrad.distributed.world import (
    Whereabouts,
    join_world,
    leave_world,
    restarts_max,
    whereabouts,
)

#: How long a collective or the rendezvous may take, as in PyTorch.
TIMEOUT = timedelta(minutes=30)

#: Set by the launcher, as ``torchrun`` sets it.
RUN_ID = "TORCHELASTIC_RUN_ID"

NOT_INITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


class ProcessGroup:
    """Some ranks that do collectives with each other.

    Not to be made by hand: ``init_process_group`` and ``new_group`` do.
    """

    def __init__(
        self, thread: MemberThread, table: GroupTable, rank: int, timeout: timedelta
    ) -> None:
        self._thread, self._table, self._rank = thread, table, rank
        #: How long a collective may take.
        self.timeout = timeout

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the world that belong to it."""
        return self._table.ranks

    def rank(self) -> int:
        """This process's, in the group; -1 outside of it."""
        return self._rank

    def size(self) -> int:
        """How many ranks it has."""
        return len(self._table.ranks)

    def start(self, operation: Operation, timeout: timedelta | None = None) -> Work:
        """Begin a collective; all ranks have to begin the same ones in the same order."""
        timeout_s = (self.timeout if timeout is None else timeout).total_seconds()
        member = self._thread.member
        operation.work.wait_until = self._thread.wait_until
        self._thread.ask(lambda: member.start(self._table, operation, time.monotonic(), timeout_s))
        return operation.work

    def post(self, to: int, tag: int, what: str, data: memoryview) -> Work:
        """Send ``data`` to a rank of the group."""
        work = Work(what)
        work.wait_until = self._thread.wait_until

        def begin() -> None:
            try:
                self._thread.member.post(self._table, to, tag, what, data)
            except RuntimeError as error:
                work.end(error)
            else:
                work.end(None)

        self._thread.do(begin)
        return work

    def collect(
        self,
        sender: int | None,
        tag: int,
        what: str,
        take: Callable[[Sequence[memoryview]], None],
    ) -> Work:
        """Have ``take(frames)`` called on what a rank of the group posts with this ``tag``.

        Who waits calls it. None: any other rank of the group may be the sender.
        """
        of_world = self.ranks
        others = tuple(rank for at, rank in enumerate(of_world) if at != self._rank)
        senders = others if sender is None else (of_world[sender],)
        came: list[memoryview] = []
        work = Work(what, lambda: take(came))
        work.wait_until = self._thread.wait_until
        timeout_s = self.timeout.total_seconds()
        deadline = time.monotonic() + timeout_s
        receive = PendingReceive(what, senders, came.extend, work, timeout_s, deadline)
        self._thread.do(lambda: self._thread.member.collect(self._table, tag, receive))
        return work

    def has_ended(self) -> bool:
        """Whether all ranks have come to the end that this one has come to, as far as any knows.

        Where a rank was lost as this one waited for the end of the others, it asks them.
        """
        member, work = self._thread.member, Work("end")
        work.wait_until = self._thread.wait_until
        self._thread.ask(lambda: member.doubt_end(work))
        return work.wait() and member.has_ended

    def __repr__(self) -> str:
        return f"<ProcessGroup of ranks {list(self.ranks)}, here {self._rank}>"


class _World:
    """The default group, and the groups made since."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.group: ProcessGroup | None = None
        self.groups = 0
        #: How this process has joined the others last.
        self.joined: tuple[Whereabouts, timedelta, bool] | None = None

    def start_anew_in_child(self) -> None:
        self.lock, self.group = threading.RLock(), None


_world = _World()
os.register_at_fork(after_in_child=_world.start_anew_in_child)


class _WithWorld(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group; None before ``init_process_group``."""
        return _world.group


class group(metaclass=_WithWorld):
    """``group.WORLD`` is the default group."""


def is_available() -> bool:
    """True: process groups need nothing that mpgrad has not."""
    return True


def is_initialized() -> bool:
    """Whether this process belongs to a group."""
    return _world.group is not None


def is_torchelastic_launched() -> bool:
    """Whether ``mpgrad run --nproc-per-node``, which may restart ranks, has started this one."""
    return RUN_ID in os.environ


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    *,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    encrypt: bool = True,
) -> None:
    """Join the other ranks of this program; all of them have to call it.

    Args:
        backend: "lanes", ZeroMQ over TCP, is the only one; PyTorch's names stand for it.
        init_method: ``env://`` (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, as ``mpgrad run`` sets
            them) or ``tcp://host:port``, where rank 0 listens.
        timeout: of the rendezvous and of each collective; 30 minutes.
        world_size: how many ranks there are; by default WORLD_SIZE.
        rank: of this process; by default RANK.
        group_name, pg_options, device_id: only there for PyTorch's callers.
        encrypt: all bytes between ranks are encrypted and authenticated (CURVE), with the key of
            MPGRAD_GROUP_KEY_FILE, which ``mpgrad run`` sets.

    Raises:
        RendezvousTimeout: not all ranks came.
        RuntimeError: the process has a group already, or rank 0 refused it.
        ValueError: an argument or a setting is missing or wrong.
    """
    if _world.group is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if backend is not None and not is_known(backend):
        raise ValueError(f"Unknown backend {backend!r}: the only one is {LANES!r}")
    timeout = TIMEOUT if timeout is None else timeout
    if not isinstance(timeout, timedelta):
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r}"
        )
    where = whereabouts(init_method or "env://", rank, world_size)
    _join(where, timeout, encrypt)


def renew_process_group() -> None:
    """Leave the ranks, and meet those that are left and those that were started again.

    Raises:
        RendezvousTimeout: not all came.
        RuntimeError: rank 0 refused this process.
        ValueError: this process belongs to no group.
    """
    destroy_process_group()
    assert _world.joined is not None
    _join(*_world.joined)


def _join(where: Whereabouts, timeout: timedelta, encrypt: bool) -> None:
    with _world.lock:
        if _world.group is not None:
            raise ValueError("trying to initialize the default process group twice!")
        thread = join_world(where, timeout.total_seconds(), encrypt=encrypt)
        table = GroupTable(0, tuple(range(where.world_size)))
        group = _world.group = ProcessGroup(thread, table, where.rank, timeout)
        _world.groups, _world.joined = 1, (where, timeout, encrypt)
    if restarts_max() == 0:
        # Ranks that have met for remote calls may not have come here yet.
        try:
            group.start(barrier_of(group)).wait()
        except BaseException:
            destroy_process_group()
            raise


def barrier_of(group: ProcessGroup, *, is_end: bool = False) -> Operation:
    """Done once all ranks of the group have begun it; ``is_end`` as in Operation."""
    steps, cuts = all_reduce_steps(group.rank(), group.size()), segments(group.size())
    none = np.empty(0, np.uint8)
    return Operation(
        "barrier", steps, none, none, source_cuts=cuts, target_cuts=cuts, is_end=is_end
    )


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leave the world, and all other groups with it.

    Args:
        group: the world by default; of another group nothing is left to do.

    Raises:
        ValueError: this process belongs to no group.
    """
    world = _default()
    if group is None or group is world:
        _world.group = None
        leave_world(world._thread)


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    *,
    group_desc: str | None = None,
    device_id: Any = None,
) -> ProcessGroup:
    """A group of some ranks; all ranks of the world have to call this, in the same order.

    Args:
        ranks: of the world; all by default.
        timeout: of its collectives; the world's by default.
        backend: as in ``init_process_group``.
        pg_options, group_desc, device_id: only there for PyTorch's callers.

    Raises:
        ValueError: a rank is not in the world, or stands there twice.
    """
    world = _default()
    if backend is not None and not is_known(backend):
        raise ValueError(f"Unknown backend {backend!r}: the only one is {LANES!r}")
    chosen = tuple(sorted(world.ranks if ranks is None else ranks))
    for rank in chosen:
        if rank not in world.ranks:
            raise ValueError(
                f"Rank {rank} is out of range. Valid ranks are 0 to {world.size() - 1} "
                f"(world_size={world.size()})"
            )
    if len(set(chosen)) < len(chosen) or not chosen:
        raise ValueError(f"a group has at least one rank, and each once, not {ranks}")
    number, _world.groups = _world.groups, _world.groups + 1
    rank = chosen.index(world.rank()) if world.rank() in chosen else -1
    table = GroupTable(number, chosen)
    return ProcessGroup(world._thread, table, rank, world.timeout if timeout is None else timeout)


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in ``group`` (default: the world); -1 outside of it.

    Raises:
        ValueError: there is no group yet.
    """
    return _default().rank() if group is None else group.rank()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """How many ranks ``group`` has (default: the world); -1 for a process outside of it.

    Raises:
        ValueError: there is no group yet.
    """
    group = _default() if group is None else group
    return -1 if group.rank() < 0 else group.size()


def get_backend(group: ProcessGroup | None = None) -> str:
    """The name of what carries messages between the ranks: "lanes", for every ``group``.

    Raises:
        ValueError: there is no group yet.
    """
    _default()
    return LANES


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """The ranks of the world that belong to ``group`` (default: all), in the group's order.

    Raises:
        ValueError: there is no group yet.
    """
    return list((_default() if group is None else group).ranks)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The rank in the world of the rank ``group_rank`` of ``group``.

    Raises:
        ValueError: the group has no such rank.
    """
    if not 0 <= group_rank < group.size():
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return group.ranks[group_rank]


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The rank in ``group`` of the rank ``global_rank`` of the world.

    Raises:
        ValueError: it is not in the group.
    """
    if global_rank not in group.ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return group.ranks.index(global_rank)


def rank_in(group: ProcessGroup, rank: int | None, group_rank: int | None) -> int:
    """The rank in ``group`` that a caller means, who gives one of both.

    Args:
        group: of ranks.
        rank: of the world.
        group_rank: of the group.

    Raises:
        ValueError: both are given, or neither, or the group has no such rank.
    """
    if group_rank is None:
        if rank is None:
            raise ValueError("Must specify global_rank or group_rank")
        return get_group_rank(group, rank)
    if rank is not None:
        raise ValueError("Can't specify both group_rank and global_rank")
    get_global_rank(group, group_rank)
    return group_rank


def root_in(group: ProcessGroup, rank: int | None, group_rank: int | None) -> int:
    """As :func:`rank_in`; rank 0 of the world where neither is given."""
    return rank_in(group, 0 if rank is None and group_rank is None else rank, group_rank)


def group_of(group: ProcessGroup | None) -> ProcessGroup:
    """The group that a caller means: the world by default."""
    return _default() if group is None else group


def _default() -> ProcessGroup:
    if _world.group is None:
        raise ValueError(NOT_INITIALIZED)
    return _world.group
