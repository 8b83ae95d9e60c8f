"""HostileFrames: frames with which an attacker might try to break the engine.

They are valid frames, some of them cut short, with changed bytes, spliced, of another kind, or with
one value out of range.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from mpgrad.wire.schema import MESSAGES

_NUMBERS = (-1, 0, 1, 7, 2**31, 2**40, 2**63 - 1, -(2**63))
_WORDS = ("", "c1.1", "w0.1", "w1.1", "w0.999", "x" * 300)


class HostileFrames:
    """Makes frames from ``valid`` ones; the same sequence for the same ``chance``."""

    def __init__(self, chance: random.Random, valid: list[bytes]) -> None:
        self._chance, self._valid = chance, valid
        self._ways = (
            self._truncate,
            self._flip,
            self._splice,
            self._rename,
            self._noise,
            self._bend,
            self._bend,
        )

    def next(self) -> bytes:
        """One frame; some of them are still valid."""
        return self._chance.choice(self._ways)(self._chance.choice(self._valid))

    def replay(self) -> bytes:
        """A valid earlier frame, unchanged."""
        return self._chance.choice(self._valid)

    def _truncate(self, frame: bytes) -> bytes:
        return frame[: self._chance.randrange(len(frame))]

    def _flip(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self._chance.randint(1, 4)):
            changed[self._chance.randrange(len(frame))] = self._chance.randrange(256)
        return bytes(changed)

    def _splice(self, frame: bytes) -> bytes:
        other = self._chance.choice(self._valid)
        at, to = self._chance.randrange(len(frame)), self._chance.randrange(len(other))
        return frame[:at] + other[to:]

    def _rename(self, frame: bytes) -> bytes:
        kinds = [*MESSAGES, 0, 255]
        return bytes([self._chance.choice(kinds)]) + frame[1:]

    def _noise(self, _: bytes) -> bytes:
        return self._chance.randbytes(self._chance.randrange(64))

    def _bend(self, frame: bytes) -> bytes:
        """Change one value of the message."""
        try:
            message = msgspec.msgpack.decode(frame[1:])
        except msgspec.DecodeError:
            return frame
        return frame[:1] + msgspec.msgpack.encode(self._bent(message))

    def _bent(self, value: Any) -> Any:
        if isinstance(value, list) and value and self._chance.random() < 0.9:
            at = self._chance.randrange(len(value))
            return [*value[:at], self._bent(value[at]), *value[at + 1 :]]
        if isinstance(value, list):
            return self._chance.choice(([], value * 2, value * 50, None))
        if isinstance(value, int):
            return self._chance.choice((*_NUMBERS, value + 1, value - 1))
        if isinstance(value, bytes):
            return self._chance.choice((b"", value * 3, self._chance.randbytes(5000), None))
        return self._chance.choice((*_WORDS, *_NUMBERS, None, [value], 0.5, float("nan")))
