"""``mpgrad run --nproc-per-node N``: N processes of one script on this host, each of them a rank.

They get the environment that ``torchrun`` gives. Each line that they print carries their rank.
Signals are passed on to them. One that fails is started again, if that is wanted; else the others
get some time to end by themselves. All that was started ends: with this process, too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from mpgrad.base import machine
from mpgrad.compat.script import MISUSED, prepare_log_dir, refusal, why_unreadable
from mpgrad.distributed.carrier.messages import Assignment
from mpgrad.distributed.launch.group_setup import key_file, reserved_port
from mpgrad.distributed.launch.rank_lines import RankLines, say
from mpgrad.distributed.launch.start_program import start_program
from mpgrad.errors import HostLost, RendezvousTimeout

if TYPE_CHECKING:
    from mpgrad.distributed.launch.job_hosts import JobHosts, MeetingPoint

#: Seconds that the other ranks have after one has failed: they learn of it, and say so.
AFTER_FAILURE_S = 15.0
#: Seconds that a rank has to end after SIGTERM or SIGINT.
AFTER_SIGNAL_S = 30.0
#: Seconds between two looks at what other hosts say.
TURN_S = 0.2

#: Set for a rank: how often it has been started again.
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ranks(NamedTuple):
    """How many processes, and where the others are."""

    per_node: int
    nodes: int = 1
    node_rank: int = 0
    master_address: str = "127.0.0.1"
    #: 0 draws one that is free; only on one node.
    master_port: int = 0
    #: How many ranks of this host that fail are started again.
    restarts_max: int = 0
    #: The id of the job.
    run_id: str = "none"
    #: Where the hosts meet; it decides on the node rank, the master and the ranks of this host.
    endpoint: MeetingPoint | None = None

    @property
    def world_size(self) -> int:
        """How many ranks there are on all hosts."""
        return self.per_node * self.nodes

    @property
    def share_a_host(self) -> bool:
        """Whether several ranks run on one host, now or once another host is lost."""
        if self.endpoint is not None and self.endpoint.terms.hosts_min < self.nodes:
            return True
        return self.per_node > 1


def launch_ranks(
    script: str,
    arguments: Sequence[str],
    ranks: Ranks,
    *,
    is_module: bool = False,
    cpu_workers: int | None = None,
    gpus: str | tuple[int, ...] | None = None,
    pin: str | None = None,
    log_dir: str | None = None,
) -> int:
    """Run ``script`` in one process for each rank of this host, and wait for all of them.

    Args:
        script: path of a Python file, or the name of a module.
        arguments: the script's ``sys.argv[1:]``.
        ranks: how many, and where.
        is_module: ``script`` is the name of a module.
        cpu_workers: of each rank's engine; by default the host's CPUs, shared equally.
        gpus: that each rank's engine may use.
        pin: what workers are bound to. Unless it is "none", each rank is bound to its share of the
            host's cores.
        log_dir: the directory for what each rank prints.

    Returns:
        0, or the exit code of the first rank that failed: 128 + n for one that signal n ended.
    """
    refused = why_unreadable(script, is_module) or prepare_log_dir(log_dir)
    if refused:
        return refusal(refused)
    with contextlib.ExitStack() as stack:
        environment = dict(os.environ)
        key = (
            stack.enter_context(key_file(secrets.token_bytes(32)))
            if "MPGRAD_GROUP_KEY_FILE" not in environment
            else None
        )
        if key is not None:
            environment["MPGRAD_GROUP_KEY_FILE"] = f"/proc/self/fd/{key}"
        if gpus is not None:
            environment["MPGRAD_GPUS"] = gpus if isinstance(gpus, str) else ",".join(map(str, gpus))
        if pin is not None:
            environment["MPGRAD_PIN"] = pin
        if cpu_workers is not None:
            environment["MPGRAD_CPU_WORKERS"] = str(cpu_workers)
        if ranks.share_a_host:
            environment.setdefault("OMP_NUM_THREADS", "1")
        environment.setdefault("PYTHONUNBUFFERED", "1")
        command = [*(["-m"] if is_module else []), script, *arguments]
        launcher = _Launcher(command, key, ranks, environment, log_dir)
        if ranks.endpoint is not None:
            from mpgrad.distributed.launch.job_hosts import job_hosts

            try:
                hosts = stack.enter_context(job_hosts(ranks.endpoint, launcher.run))
            except (OSError, ValueError) as error:
                return refusal(str(error))
            stack.enter_context(launcher)
            return launcher.wait(hosts)
        if ranks.master_port == 0:
            reserved = stack.enter_context(reserved_port(ranks.master_address))
            ranks = ranks._replace(master_port=reserved)
        stack.enter_context(launcher)
        first = ranks.node_rank * ranks.per_node
        own = tuple(range(first, first + ranks.per_node))
        launcher.run(Assignment("", ranks.node_rank, ranks.nodes, 0, own, ranks.master_port))
        return launcher.wait()


@dataclass(eq=False)
class _Rank:
    """One process."""

    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]
    pidfd: int
    lines: RankLines

    @property
    def number(self) -> int:
        return int(self.environment["RANK"])


class _Launcher:
    """The ranks of this host, from their start to their end.

    Args:
        command: the script and its arguments.
        key: the descriptor of the group's key, which ranks inherit.
        job: its ranks on all hosts.
        environment: what all ranks get.
        log_dir: see ``launch_ranks``.
    """

    def __init__(
        self,
        command: Sequence[str],
        key: int | None,
        job: Ranks,
        environment: Mapping[str, str],
        log_dir: str | None,
    ) -> None:
        self._command, self._key, self._log_dir = command, key, log_dir
        self._job, self._environment = job, environment
        self._restarts_max, self._restarts = job.restarts_max, 0
        #: The other hosts, while these are asked what to run.
        self._hosts: JobHosts | None = None
        #: The first rank that has ended well: the others cannot meet it again.
        self._ended_well: _Rank | None = None
        self._ranks: list[_Rank] = []
        self._alive: set[_Rank] = set()
        self._selector = selectors.DefaultSelector()
        self._code = 0
        #: When those that are alive get which signal; None while all is well.
        self._next_signal: tuple[float, signal.Signals] | None = None

    def __enter__(self) -> _Launcher:
        self._before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
        return self

    def __exit__(self, *exc: object) -> None:
        for rank in self._ranks:
            self._kill(rank)
            rank.process.wait()
        self._drain()
        for rank in self._ranks:
            os.close(rank.pidfd)
            rank.lines.close()
            for stream in (rank.process.stdout, rank.process.stderr):
                if stream is not None:
                    stream.close()
        self._selector.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, share: Assignment) -> None:
        """Start ranks, beside those that run here already."""
        if self._code != 0 or self._next_signal is not None:
            return  # this host is about to end, and then others get them
        if self._hosts is not None:
            what = "ranks of a lost host" if share.losses else "ranks"
            does = f"runs {what}: {', '.join(map(str, share.ranks))}"
            if not share.ranks:
                does = "waits until another host is lost"
            say(f"this is host {share.host}, and {does}")
        taken = {rank.environment["LOCAL_RANK"] for rank in self._alive}
        free = [k for k in range(self._job.world_size) if str(k) not in taken]
        together = len(self._alive) + len(share.ranks)
        for local_rank, rank in zip(free, share.ranks, strict=False):
            self._start(self._environment_of(rank, local_rank, together, share))

    def _environment_of(
        self, rank: int, local_rank: int, local_size: int, share: Assignment
    ) -> Mapping[str, str]:
        """What ``torchrun`` sets, and the rank's part of this host."""
        job, hosts = self._job, self._hosts
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": job.world_size,
            "LOCAL_WORLD_SIZE": local_size,
            "GROUP_RANK": share.host,
            "GROUP_WORLD_SIZE": share.hosts,
            "MASTER_PORT": share.master_port,
            "TORCHELASTIC_MAX_RESTARTS": job.restarts_max,
            RESTART_COUNT: share.losses,
        }
        cpus = str(max(1, machine.available_cpus() // local_size))
        master = job.master_address if hosts is None else hosts.address
        return {
            "MPGRAD_CPU_WORKERS": cpus,
            **self._environment,
            **{name: str(number) for name, number in numbers.items()},
            "MASTER_ADDR": master,
            "TORCHELASTIC_RUN_ID": job.run_id,
        }

    def _start(self, environment: Mapping[str, str]) -> None:
        """Start a rank, in a process group of its own."""
        number, key = int(environment["RANK"]), self._key
        # A process of another group than the terminal's may not read from that.
        reads = number == 0 and sys.stdin is not None and not os.isatty(0)
        process = start_program(
            self._command,
            environment,
            stdin=None if reads else subprocess.DEVNULL,
            pass_fds=() if key is None else (key,),
            process_group=0,
        )
        log = None
        if self._log_dir is not None:
            mode = "wb" if environment[RESTART_COUNT] == "0" else "ab"
            log = open(os.path.join(self._log_dir, f"rank{number}.log"), mode)  # noqa: SIM115
        rank = _Rank(environment, process, os.pidfd_open(process.pid), RankLines(number, log))
        self._ranks.append(rank)
        self._alive.add(rank)
        self._selector.register(rank.pidfd, selectors.EVENT_READ, (rank, None))
        for stream, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (rank, sink))

    def wait(self, hosts: JobHosts | None = None) -> int:
        """Wait until all have ended; the exit code.

        Args:
            hosts: tell what to run here, and where that has ended, too.
        """
        self._hosts = hosts
        while self._alive or self._is_needed():
            for ready, _ in self._selector.select(self._seconds_left()):
                rank, sink = ready.data
                if sink is None:
                    self._note_end(rank)
                else:
                    self._print(rank, ready.fileobj, sink)
            self._signal_in_time()
            self._ask_hosts()
        return self._code

    # ------------------------------------------------------------------ other hosts

    def _is_needed(self) -> bool:
        """Whether this host may get ranks, or others need it."""
        if self._hosts is None or self._code != 0 or self._next_signal is not None:
            return False
        return self._hosts.is_needed

    def _ask_hosts(self) -> None:
        if self._hosts is None:
            return
        try:
            self._hosts.look()
            return
        except HostLost as error:
            text, code = f"host 0 is lost: {error.cause}", 1
        except RendezvousTimeout as error:
            text, code = f"RendezvousTimeout: {error}", MISUSED
        except RuntimeError as error:
            text, code = str(error), MISUSED
        self._hosts = None
        if self._ranks and not self._alive and self._code == 0:
            return  # all have ended well
        # Where nothing is started again, ranks say themselves what it means to them. Else others
        # may run them soon.
        seconds = 0.0 if self._restarts_max else AFTER_FAILURE_S
        if self._alive and self._next_signal is None:
            others = ", ".join(str(rank.number) for rank in self._living())
            text += f"; ranks {others} have {seconds:g} s to end"
            self._next_signal = time.monotonic() + seconds, signal.SIGTERM
        if not (self._alive and seconds):
            self._code = self._code or code
        say(text)

    # ------------------------------------------------------------------ ends

    def _note_end(self, rank: _Rank) -> None:
        self._selector.unregister(rank.pidfd)
        self._alive.discard(rank)
        self._kill(rank)
        code = rank.process.wait()
        if code == 0:
            self._ended_well = self._ended_well or rank
            if self._hosts is not None:
                self._hosts.end(rank.number)
            return
        how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        ended = f"rank {rank.number} (process {rank.process.pid}) ended with {how}"
        why_not = self._why_not_again()
        if why_not is None:
            self._restarts += 1
            say(f"{ended}; it is started again ({self._restarts} of {self._restarts_max} restarts)")
            count = str(int(rank.environment[RESTART_COUNT]) + 1)
            self._start({**rank.environment, RESTART_COUNT: count})
            return
        if self._code == 0:
            self._code = code if code > 0 else 128 - code
            why, seconds = why_not
            ended += why
            if self._alive and self._next_signal is None:
                others = ", ".join(str(other.number) for other in self._living())
                say(f"{ended}; ranks {others} have {seconds:g} s to end")
                self._next_signal = time.monotonic() + seconds, signal.SIGTERM
                return
        say(ended)

    def _why_not_again(self) -> tuple[str, float] | None:
        """Why a rank that has failed is not started again, and the seconds that the others have."""
        if self._restarts_max == 0 or self._next_signal is not None or self._code != 0:
            return "", AFTER_FAILURE_S
        if self._ended_well is not None:
            why = f"; it is not started again, since rank {self._ended_well.number} has ended"
            return why, AFTER_FAILURE_S
        if self._restarts == self._restarts_max:
            why = (
                f"; all {self._restarts_max} restarts are used up: see what it has printed first, "
                "or give a larger --max-restarts"
            )
            return why, 0.0  # the others wait for it, and have nothing to report
        return None

    def _kill(self, rank: _Rank) -> None:
        """End the rank's process group: itself, and what it has started and left.

        Until it is waited for, its number is nobody else's.
        """
        if rank.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGKILL)

    def _living(self) -> list[_Rank]:
        return [rank for rank in self._ranks if rank in self._alive]

    # ------------------------------------------------------------------ signals

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        is_second = self._next_signal is not None and number == signal.SIGINT
        for rank in self._living():
            with contextlib.suppress(ProcessLookupError):
                rank.process.send_signal(signal.SIGKILL if is_second else number)
        if number in ENDING:
            if not self._alive:
                self._code = self._code or 128 + number
            self._next_signal = time.monotonic() + AFTER_SIGNAL_S, signal.SIGKILL

    def _seconds_left(self) -> float | None:
        turn = None if self._hosts is None else TURN_S
        if self._next_signal is None:
            return turn
        left = max(0.0, self._next_signal[0] - time.monotonic())
        return left if turn is None else min(left, turn)

    def _signal_in_time(self) -> None:
        if self._next_signal is None or time.monotonic() < self._next_signal[0]:
            return
        for rank in self._living():
            with contextlib.suppress(ProcessLookupError):
                rank.process.send_signal(self._next_signal[1])
                # One that is stopped would never take it.
                rank.process.send_signal(signal.SIGCONT)
        self._next_signal = time.monotonic() + AFTER_SIGNAL_S, signal.SIGKILL

    # ------------------------------------------------------------------ what they print

    def _print(self, rank: _Rank, stream: Any, sink: IO[str]) -> None:
        if not rank.lines.take(stream, sink):
            self._selector.unregister(stream)

    def _drain(self) -> None:
        """Print what is left; nobody writes any more."""
        while True:
            ready = [key for key, _ in self._selector.select(0) if key.data[1] is not None]
            if not ready:
                return
            for key in ready:
                self._print(key.data[0], key.fileobj, key.data[1])
