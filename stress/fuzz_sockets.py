"""Hostile frames over the sockets of a real engine, while it trains.

Attackers are threads here; they know only what another process of the same user could find out.
"""

from __future__ import annotations

import os
import random
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import mpgrad as mg
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.schema import MESSAGE_BYTES_MAX
from mpgrad.wire.transport import CLIENT, ROUTER_LANES, WORKER_LANES, Dealer
from stress.fuzz_core import Tally, frames_of_honest_peers
from stress.hostile_frames import HostileFrames
from stress.load import Training
from tests.leftovers import wait_until

#: Frames that are sent together, and batches after which an attacker waits for their reception.
BATCH, BATCHES_AHEAD = 100, 5
#: The number of connections that do not even send frames.
RAW_CONNECTIONS = 50
PATIENCE_S = 30.0


def fuzz_engine(
    frames: int, chance: random.Random, expected: list[str], advance: Callable[[int], None]
) -> Tally:
    """Send ``frames`` frames to a training engine.

    Args:
        frames: the number of frames of peers without a token: each must be refused and counted.
        chance: chooses the frames.
        expected: fingerprints of ``Training(0)``, repeated.
        advance: gets the number of frames that were sent.

    Raises:
        AssertionError: a gradient is wrong, or a frame was accepted or miscounted.
    """
    with mg.Engine("process", cpu_workers=2) as engine:
        workers = engine.worker_pids()
        attacker = _Attacker(_name_of_the_sockets(engine.coordinator_pid), frames, chance, advance)
        attacker.start()
        backwards = 0
        while attacker.is_alive():
            backwards += _train(expected)
            attacker.refused = engine.statistics().protocol_errors
        attacker.join()
        wait_until(lambda: engine.statistics().protocol_errors >= attacker.sent, PATIENCE_S)
        statistics = engine.statistics()
        assert statistics.protocol_errors == attacker.sent, (
            f"{attacker.sent} frames, {statistics.protocol_errors} refused"
        )
        attacker.speak_nonsense()
        attacker.take_names_that_are_taken()
        backwards += _train(expected)
        assert engine.worker_pids() == workers, "a worker was replaced"
        assert engine.statistics().failed == 0
        attacker.close()
    return Tally(attacker.sent, statistics.protocol_errors, backwards)


def _train(expected: list[str]) -> int:
    """One training; the number of its backwards."""
    training = Training(0)
    for number, fingerprint in enumerate(expected):
        assert training.step() == fingerprint, f"backward {number} of a training is wrong"
    return len(expected)


def _name_of_the_sockets(coordinator: int | None) -> str:
    """The name of the sockets, as every process of this user can find it."""
    held = {os.readlink(entry) for entry in Path(f"/proc/{coordinator}/fd").iterdir()}
    rows = Path("/proc/net/unix").read_text().splitlines()
    found = [re.search(r" (\d+) @(mpgrad-[0-9a-f]{32})/", row) for row in rows]
    [name] = {row[2] for row in found if row and f"socket:[{row[1]}]" in held}
    return name


class _Attacker(threading.Thread):
    """Sends frames on every lane under many names."""

    def __init__(
        self, name: str, frames: int, chance: random.Random, advance: Callable[[int], None]
    ) -> None:
        super().__init__(name="attacker")
        self._engine, self._frames, self._chance = name, frames, chance
        self._advance = advance
        self._hostile = HostileFrames(chance, frames_of_honest_peers(chance))
        self._dealers: list[Dealer] = []
        self.sent = 0
        #: As the engine says, told from outside.
        self.refused = 0

    def run(self) -> None:
        names = [("c66.1", CLIENT), ("w0.1", CLIENT), ("w1.2", "task"), ("w0.999", "control")]
        names += [(name, lane) for name in ("w9.1", "c1.0", "?") for lane in WORKER_LANES]
        dealers = [(self._connect(name, lane), lane) for name, lane in names]
        while self.sent < self._frames:
            count = min(BATCH, self._frames - self.sent)
            dealer, lane = self._chance.choice(dealers)
            dealer.send([self._hostile.next() for _ in range(count)], lane)
            self.sent += count
            self._advance(count)
            wait_until(lambda: self.refused >= self.sent - BATCH * BATCHES_AHEAD, PATIENCE_S)

    def _connect(self, name: str, lane: str) -> Dealer:
        dealer = Endpoint(self._engine, b"guess").dealer(name, (lane,))
        self._dealers.append(dealer)
        return dealer

    def speak_nonsense(self) -> None:
        """Send bytes that are no frames, and finally a frame that is too long."""
        for _ in range(RAW_CONNECTIONS):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(f"\0{self._engine}/{self._chance.choice(ROUTER_LANES)}")
                raw.sendall(self._chance.randbytes(self._chance.randrange(1, 500)))
        self._connect("c66.2", CLIENT).send([bytes(MESSAGE_BYTES_MAX + 1)])

    def take_names_that_are_taken(self) -> None:
        """The transport refuses a second connection with the name of a connected peer."""
        for lane in WORKER_LANES:
            self._connect("w0.1", lane).send([self._hostile.next() for _ in range(BATCH)], lane)

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.close()
