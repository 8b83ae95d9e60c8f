"""A peer's name in a lane, and the proof that whoever uses it knows the engine's token.

So nobody else can speak as a peer, take its name before it has connected, or take it over when it
has died.
"""

from __future__ import annotations

import hashlib
import hmac

PROOF_BYTES = 16


def identity_of(token: bytes, lane: str, peer: str) -> bytes:
    """The name of ``peer`` in ``lane``, and the proof that its user knows ``token``."""
    name = peer.encode("latin-1")
    message = lane.encode() + b" " + name
    return name + hashlib.blake2b(message, key=token, digest_size=PROOF_BYTES).digest()


def verified_peer(token: bytes, lane: str, identity: bytes) -> str | None:
    """The peer that ``identity`` stands for in ``lane``, or None for a stranger."""
    peer = identity[:-PROOF_BYTES].decode("latin-1")
    return peer if hmac.compare_digest(identity, identity_of(token, lane, peer)) else None
