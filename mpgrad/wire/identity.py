"""The identity of a peer in a lane: its name, and the proof that it knows the engine's token.

So no other process can speak as a peer, take its name before it has connected, or take it over
after its death.
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
    """The peer that ``identity`` names in ``lane``, or None if the proof is wrong."""
    peer = identity[:-PROOF_BYTES].decode("latin-1")
    return peer if hmac.compare_digest(identity, identity_of(token, lane, peer)) else None
