"""hosts: ranks of a program are killed or stopped at random instants, and strangers send frames.

Three ranks average gradients, call each other and differentiate over each other (``host_program``).
``mpgrad run`` starts those that die again, and they meet the others anew. The promises: no bit is
wrong, every other rank gets HostLost that names the one that died (or a rank that has left because
of it), all meet again and end in time, and nothing is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stress.run import Run, Verdict, count, minutes, progress_bar
from tests.leftovers import Leftovers, left_since

PROGRAM = Path(__file__).with_name("host_program.py")
RANKS = 3
#: Every so many deaths, a rank is stopped instead of killed: the others need 5 s to notice that.
STOPS_EVERY = 10
#: Deaths in one program.
DEATHS = 50
#: Seconds from the first rounds to the death, at most; from there until all ranks that are left
#: have said so, until all are ready again, and until all have ended, at most.
LIFE_S, END_S = 1.0, 90.0
#: Frames that one connection of a stranger sends.
FRAMES_AT_ONCE = 50


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=count, default=10, metavar="N", help="ranks to kill")
    parser.add_argument("--frames", type=int, default=10_000, metavar="N", help="of strangers")
    parser.add_argument("--seed", type=int, help="of instants, victims, values; default: drawn")
    parser.add_argument("--minutes", type=minutes, default=5.0, metavar="M", help="at most")


@dataclass
class Tally:
    """The events of a run."""

    programs: int = 0
    killed: int = 0
    stopped: int = 0
    rounds: int = 0
    frames: int = 0
    #: What was not as promised, in words.
    faults: list[str] = field(default_factory=list)

    @property
    def deaths(self) -> int:
        """So far."""
        return self.killed + self.stopped


def _perform(options: argparse.Namespace) -> Verdict:
    chance, tally = random.Random(options.seed), Tally()
    print(f"hosts: --seed {options.seed} --kills {options.kills}", flush=True)
    before, deadline = Leftovers.now(), time.monotonic() + 60 * options.minutes
    with progress_bar() as progress:
        bar = progress.add_task("kills", total=options.kills)
        while tally.deaths < options.kills and time.monotonic() < deadline:
            tally.programs += 1
            with _Program(chance, tally) as program:
                for _ in range(min(DEATHS, options.kills - tally.deaths)):
                    due = options.frames * (tally.deaths + 1) // options.kills - tally.frames
                    if time.monotonic() > deadline or not program.one_death(due):
                        break
                    progress.update(bar, completed=tally.deaths)
    left = left_since(before)
    figures = (
        f"{tally.killed} ranks killed and {tally.stopped} stopped, of {RANKS}, in {tally.programs} "
        f"programs; {tally.rounds} rounds with right bits, {tally.frames:,} frames of strangers, "
        f"{len(tally.faults)} faults{': ' if tally.faults else ''}{'; '.join(tally.faults[:3])}; "
        f"{left or 'nothing'} left"
    )
    return Verdict(not tally.faults and not left and tally.killed > 0, figures)


class _Program:
    """One program, whose ranks die one after another.

    Args:
        chance: of the seed, the instants and the victims.
        tally: gets what happens.
    """

    def __init__(self, chance: random.Random, tally: Tally) -> None:
        self._chance, self._tally = chance, tally
        self._seed = chance.randrange(10**6)
        command = [sys.executable, "-m", "mpgrad", "run", "--nproc-per-node", str(RANKS)]
        command += ["--max-restarts", str(DEATHS), str(PROGRAM), str(self._seed)]
        # What ranks say of themselves is part of what went wrong.
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        #: The process of each rank that is ready, and what ranks have said since the last death.
        self._pids: dict[int, int] = {}
        self._said: list[str] = []

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._are_ready():
                self._process.send_signal(signal.SIGTERM)
                with self._patience():
                    output, _ = self._process.communicate()
                # The first that leaves is lost for the others, which are told to end, too.
                if self._process.returncode != 0 or "wrong" in output:
                    self._note(f"ended with {self._process.returncode}: {output[-300:]}")
        finally:
            self._process.kill()  # its ranks end with it
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def one_death(self, frames: int) -> bool:
        """Let strangers send frames, and kill or stop a rank; whether the program goes on."""
        if not self._are_ready():
            return False
        chance, tally = self._chance, self._tally
        tally.frames += _send_as_stranger(chance, frames, list(self._pids.values()))
        time.sleep(chance.uniform(0.0, LIFE_S))
        victim = chance.randrange(RANKS)
        pid = self._pids.pop(victim)
        is_stop = tally.deaths % STOPS_EVERY == STOPS_EVERY - 1
        os.kill(pid, signal.SIGSTOP if is_stop else signal.SIGKILL)
        tally.stopped, tally.killed = tally.stopped + is_stop, tally.killed + (not is_stop)
        self._said.clear()
        others = {*range(RANKS)} - {victim}
        is_heard = self._hear(lambda: others <= {int(rank) for rank in _lost(self._said)})
        _judge(self._seed, victim, self._said, tally)
        if is_stop and is_heard:  # it is started again only if it dies
            os.kill(pid, signal.SIGKILL)
        self._pids.clear()
        return is_heard

    def _are_ready(self) -> bool:
        def are_here() -> bool:
            found = re.fullmatch(r"\[rank (\d+)\] ready (\d+)\n", (self._said or [""])[-1])
            if found:
                self._pids[int(found[1])] = int(found[2])
            return len(self._pids) == RANKS

        if self._hear(are_here):
            return True
        self._note(f"only {sorted(self._pids)} are ready: {self._said[-3:]}")
        return False

    def _hear(self, is_enough: Callable[[], bool]) -> bool:
        """Read until it is enough; False at the end of the output, or of the patience."""
        assert self._process.stdout is not None
        with self._patience():
            while not is_enough():
                line = self._process.stdout.readline()
                if not line:
                    return False
                self._said.append(line)
        return True

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """End all once it has lasted for ``END_S``."""
        timer = threading.Timer(END_S, self._process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _note(self, fault: str) -> None:
        self._tally.faults.append(f"seed {self._seed}: {fault}")


def _lost(said: list[str]) -> dict[str, str]:
    """By rank: whom it has lost, after how many rounds, and the error."""
    return dict(re.findall(r"^\[rank (\d)\] lost (\d+ \d+ .*)$", "".join(said), re.MULTILINE))


def _judge(seed: int, victim: int, said: list[str], tally: Tally) -> None:
    lost = _lost(said)
    for rank in sorted({*range(RANKS)} - {victim}):
        who, rounds, error = lost.get(str(rank), "- 0 -").split(maxsplit=2)
        if who == str(victim) or f"after rank {victim} was lost" in error:
            tally.rounds += int(rounds)
        else:
            last = [line for line in said if line.startswith(f"[rank {rank}]")][-1:]
            tally.faults.append(f"seed {seed}: rank {victim} died, rank {rank} said {last}")


# ---------------------------------------------------------------------------- strangers


def _send_as_stranger(chance: random.Random, frames: int, pids: list[int]) -> int:
    """Send frames to the ports of the ranks, without their key; how many were sent."""
    ports = [address for pid in pids for address in _listening(pid)]
    sent = 0
    while sent < frames:
        batch = min(FRAMES_AT_ONCE, frames - sent)
        with contextlib.suppress(OSError), socket.create_connection(chance.choice(ports)) as raw:
            raw.sendall(_greeting(chance) + b"".join(_frame(chance) for _ in range(batch)))
        sent += batch
    return sent


def _listening(pid: int) -> list[tuple[str, int]]:
    """Where a process listens for TCP."""
    held = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    found = []
    for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        columns = row.split()
        if columns[3] == "0A" and f"socket:[{columns[9]}]" in held:
            address, port = columns[1].split(":")
            packed = bytes.fromhex(address)[::-1]
            found.append((socket.inet_ntoa(packed), int(port, 16)))
    return found


def _greeting(chance: random.Random) -> bytes:
    """What opens a connection of ZeroMQ; now and then something else."""
    if chance.random() < 0.1:
        return chance.randbytes(64)
    mechanism = chance.choice([b"CURVE", b"NULL", b"PLAIN"])
    head = b"\xff" + bytes(7) + b"\x01\x7f\x03" + bytes([chance.randrange(3)])
    return head + mechanism.ljust(20, b"\0") + bytes(32)


def _frame(chance: random.Random) -> bytes:
    """A frame or command of ZeroMQ: of any kind, length and content."""
    kind = chance.randrange(4)
    if kind == 0:
        hello = b"\x05HELLO" + bytes([1, 0]) + chance.randbytes(192)
        return bytes([4, len(hello)]) + hello
    body = chance.randbytes(chance.randrange(200))
    if kind == 1:
        return bytes([chance.randrange(8), len(body)]) + body
    if kind == 2:
        return b"\x02" + chance.randrange(2**63).to_bytes(8, "big") + body
    return body


HOSTS = Run(
    "hosts",
    "ranks of a program die while they train and call each other, and strangers send frames",
    _add_options,
    _perform,
)
