"""hosts: ranks of a program are killed or stopped at random instants, and strangers send frames.

Three ranks average gradients, call each other and differentiate over each other (``host_program``).
The promises: no bit is wrong before one dies, every other rank gets HostLost that names it (or a
rank that has left because of it), all ends in time, and nothing is left.
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
import time
from dataclasses import dataclass, field
from pathlib import Path

from stress.run import Run, Verdict, count, minutes, progress_bar
from tests.leftovers import Leftovers, left_since

PROGRAM = Path(__file__).with_name("host_program.py")
RANKS = 3
#: Every so many deaths, a rank is stopped instead of killed: the others need 5 s to notice that.
STOPS_EVERY = 10
#: Seconds from the first rounds to the death, at most; from there to the end of all, at most.
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

    killed: int = 0
    stopped: int = 0
    rounds: int = 0
    frames: int = 0
    #: What was not as promised, in words.
    faults: list[str] = field(default_factory=list)


def _perform(options: argparse.Namespace) -> Verdict:
    chance, tally = random.Random(options.seed), Tally()
    print(f"hosts: --seed {options.seed} --kills {options.kills}", flush=True)
    before, deadline = Leftovers.now(), time.monotonic() + 60 * options.minutes
    with progress_bar() as progress:
        bar = progress.add_task("kills", total=options.kills)
        for number in range(options.kills):
            if time.monotonic() > deadline:
                break
            due = options.frames * (number + 1) // options.kills - tally.frames
            how = signal.SIGSTOP if number % STOPS_EVERY == STOPS_EVERY - 1 else signal.SIGKILL
            _one_death(chance, how, due, tally)
            progress.advance(bar)
    left = left_since(before)
    figures = (
        f"{tally.killed} ranks killed and {tally.stopped} stopped, of {RANKS} each; "
        f"{tally.rounds} rounds with right bits, {tally.frames:,} frames of strangers, "
        f"{len(tally.faults)} faults{': ' if tally.faults else ''}{'; '.join(tally.faults[:3])}; "
        f"{left or 'nothing'} left"
    )
    return Verdict(not tally.faults and not left and tally.killed > 0, figures)


def _one_death(chance: random.Random, how: signal.Signals, frames: int, tally: Tally) -> None:
    """Start the ranks, let strangers send frames, and kill or stop one."""
    seed = chance.randrange(10**6)
    command = [sys.executable, "-m", "mpgrad", "run", "--nproc-per-node", str(RANKS)]
    with subprocess.Popen(
        [*command, str(PROGRAM), str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            pids: dict[int, int] = {}
            while len(pids) < RANKS:
                line = process.stdout.readline()
                ready = re.fullmatch(r"\[rank (\d+)\] ready (\d+)\n", line)
                if ready is None:
                    tally.faults.append(f"seed {seed}: {line.strip() or 'no rank is ready'}")
                    return
                pids[int(ready[1])] = int(ready[2])
            tally.frames += _send_as_stranger(chance, frames, list(pids.values()))
            time.sleep(chance.uniform(0.0, LIFE_S))
            victim = chance.randrange(RANKS)
            os.kill(pids[victim], how)
            if how == signal.SIGKILL:
                tally.killed += 1
            else:
                tally.stopped += 1
            output, errors = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            tally.faults.append(f"seed {seed}: not all has ended {END_S:g} s after {how.name}")
            return
        finally:
            process.kill()  # its ranks end with it
    _judge(seed, victim, output, errors, tally)


def _judge(seed: int, victim: int, output: str, errors: str, tally: Tally) -> None:
    lost = dict(re.findall(r"^\[rank (\d)\] lost (\d+ \d+ .*)$", output, re.MULTILINE))
    for rank in sorted({*range(RANKS)} - {victim}):
        who, rounds, error = lost.get(str(rank), "- 0 -").split(maxsplit=2)
        if who == str(victim) or f"after rank {victim} was lost" in error:
            tally.rounds += int(rounds)
        else:
            said = re.findall(rf"^\[rank {rank}\] (.*)$", output + errors, re.MULTILINE)
            tally.faults.append(f"seed {seed}: rank {victim} died, rank {rank} said {said[-1:]}")


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
