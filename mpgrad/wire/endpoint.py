"""Endpoint: the address of an engine's sockets, and the token that its peers must know."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from mpgrad.wire.transport import CLIENT, WORKER_LANES, Dealer, Router


class Endpoint(NamedTuple):
    """The name of an engine's sockets, and the token of its peers.

    ZeroMQ is loaded when a socket is made, because the import takes 15 ms.
    """

    #: The sockets have abstract addresses (unix(7)): they are no files, and end with their owner.
    name: str
    token: bytes

    @classmethod
    def create(cls) -> Endpoint:
        """A new endpoint with a random name and token."""
        return cls(f"mpgrad-{secrets.token_hex(16)}", secrets.token_bytes(32))

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, <token>)"

    def router(self) -> Router:
        """The coordinator's end."""
        from mpgrad.wire.zeromq import ZmqRouter

        return ZmqRouter(self)

    def worker(self, peer: str) -> Dealer:
        """The end of worker ``peer``."""
        return self.dealer(peer, WORKER_LANES)

    def session(self, peer: str) -> Dealer:
        """The end of session ``peer``."""
        return self.dealer(peer, (CLIENT,))

    def dealer(self, peer: str, lanes: tuple[str, ...]) -> Dealer:
        """An end for ``lanes``, the most urgent first."""
        from mpgrad.wire.zeromq import ZmqDealer

        return ZmqDealer(self, peer, lanes)
