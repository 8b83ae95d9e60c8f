"""Endpoint: where the processes of an engine meet, and over which transport they speak."""

from __future__ import annotations

import socket
from typing import NamedTuple

from mpgrad.wire.transport import CLIENT, WORKER_LANES, Hub, Spoke

#: ``MPGRAD_TRANSPORT``: sockets of the system, or ZeroMQ over them.
UNIX, ZEROMQ = "unix", "zeromq"


class Endpoint(NamedTuple):
    """What a peer has to know to find the coordinator and to be heard.

    The transports are loaded when they are used: to import ZeroMQ takes a process 15 ms.
    """

    transport: str
    #: Private directory of the sockets.
    directory: str
    token: bytes

    def listen(self) -> socket.socket | None:
        """A socket that the coordinator is to inherit, so that peers find it before it is there.

        Raises:
            OSError: it cannot be made.
        """
        if self.transport == ZEROMQ:
            return None  # whose peers connect again and again
        from mpgrad.wire.unix_hub import listen

        return listen(self.directory)

    def hub(self, listener: int) -> Hub:
        """The coordinator's end.

        Args:
            listener: descriptor of what ``listen`` made, -1 for none.
        """
        if self.transport == ZEROMQ:
            from mpgrad.wire.zeromq import ZmqHub

            return ZmqHub(self.directory, self.token)
        from mpgrad.wire.unix_hub import UnixHub

        return UnixHub(socket.socket(fileno=listener), self.token)

    def worker(self, peer: str) -> Spoke:
        """The end of worker ``peer``."""
        return self.spoke(peer, WORKER_LANES)

    def session(self, peer: str) -> Spoke:
        """The end of session ``peer``."""
        return self.spoke(peer, (CLIENT,))

    def spoke(self, peer: str, lanes: tuple[str, ...]) -> Spoke:
        """An end for ``lanes``, the most urgent first.

        Raises:
            OSError: nobody listens any more.
        """
        if self.transport == ZEROMQ:
            from mpgrad.wire.zeromq import ZmqSpoke

            return ZmqSpoke(self.directory, peer, self.token, lanes)
        from mpgrad.wire.unix_spoke import UnixSpoke

        return UnixSpoke(self.directory, peer, self.token, lanes, is_patient=CLIENT not in lanes)
