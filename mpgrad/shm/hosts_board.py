"""HostsBoard: a shared page where a client shows the hosts of its cluster, for ``mpgrad top``.

This module does not load NumPy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from mpgrad.shm.segment import Segment, copy_of

#: The bytes of a board: hosts that do not fit are not shown.
BYTES_MAX = 1 << 18
#: What a segment of a board is called.
_NAME = "hosts"
_MIB = 2**20


@dataclass
class HostFigures:
    """What a host has done for an engine.

    Attributes:
        name: of the machine, and its address.
        workers: 0: it is lost.
        calls: the calls that it has run, in both passes.
        sent_bytes: of the arrays and messages that have gone there.
        received_bytes: of what has come back.
        losses: how often its actor was lost.
    """

    name: str
    workers: int = 0
    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    losses: int = 0

    def in_words(self) -> str:
        """All but the name."""
        lost = f", losses: {self.losses}" if self.losses else ""
        return (
            f"{self.workers} workers, {self.calls:,} calls, {self.sent_bytes / _MIB:.1f} MiB sent, "
            f"{self.received_bytes / _MIB:.1f} MiB received{lost}"
        )


class HostsBoard:
    """The board of one client."""

    def __init__(self) -> None:
        self._segment = Segment.create(BYTES_MAX, _NAME)
        #: Of the client: its forked children have the memory, too.
        self._pid = os.getpid()

    def show(self, hosts: Sequence[HostFigures]) -> None:
        """Replace what it shows."""
        data = self._packed(hosts)
        while len(data) >= BYTES_MAX:
            hosts = hosts[: len(hosts) // 2]
            data = self._packed(hosts)
        self._segment.buffer[: len(data) + 1] = data + b"\0"

    def _packed(self, hosts: Sequence[HostFigures]) -> bytes:
        return json.dumps([self._pid, *[vars(host) for host in hosts]]).encode()

    def close(self) -> None:
        self.show([])  # its memory stays as long as this object
        self._segment.close()


def hosts_of_client(pid: int) -> list[HostFigures]:
    """The hosts of a process of the same user; none if it has no board, or has ended."""
    try:
        text = copy_of(pid, _NAME).partition(b"\0")[0]
        owner, *hosts = json.loads(text)
        return [HostFigures(**one) for one in hosts] if owner == pid else []
    except (OSError, LookupError, ValueError, TypeError):  # or it was read while it was written
        return []
