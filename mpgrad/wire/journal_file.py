"""A Journal as a file of plain msgpack, so that reading one runs no code.

Events, instructions and tables are typed msgpack, as on the wire. Such a file can contain nothing
else.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events, instructions
from mpgrad.wire.journal import Outcome, Record, tables_of

MAGIC = b"mpgrad journal 4\n"


class JournalFile(NamedTuple):
    """The journal of a coordinator.

    Attributes:
        pid: its process id.
        version: the version of mpgrad.
        written: the time, in ISO 8601.
        reason: the reason for writing it; for an error its type and text.
        details: the traceback.
        record: see ``Journal``.
    """

    pid: int
    version: str
    written: str
    reason: str
    details: str
    record: Record


#: An event or instruction: its class, and its fields.
_Message: TypeAlias = tuple[str, bytes]


class _Written(NamedTuple):
    """The same as it stands in the file."""

    pid: int
    version: str
    written: str
    reason: str
    details: str
    start: bytes
    entries: list[tuple[_Message, list[_Message] | str]]
    answers: list[tuple[int, ...]]


def to_bytes(journal: JournalFile) -> bytes:
    """The content of a file."""
    start, entries, answers = journal.record
    written = [(_message(event), _outcome(outcome)) for event, outcome in entries]
    return MAGIC + _encoder.encode((*journal[:-1], start, written, answers))


def from_bytes(data: bytes) -> JournalFile:
    """What ``to_bytes`` wrote.

    Raises:
        ProtocolError: it is no journal, or one of another version's.
    """
    if not data.startswith(MAGIC):
        raise ProtocolError("this is no journal, or one of another version of mpgrad")
    try:
        file = _reader.decode(memoryview(data)[len(MAGIC) :])
        tables_of(file.start)  # or it is damaged
        entries = [(_event(event), _recorded(outcome)) for event, outcome in file.entries]
        record = Record(file.start, entries, file.answers)
        return JournalFile(file.pid, file.version, file.written, file.reason, file.details, record)
    except (msgspec.MsgspecError, LookupError) as error:
        raise ProtocolError(f"the journal is damaged, or of another version: {error}") from None


def _tuples_of(*modules: Any) -> dict[str, type[Any]]:
    """The NamedTuples of some modules, by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
    }


_TUPLES = _tuples_of(events, instructions)
_encoder = msgspec.msgpack.Encoder()
_reader = msgspec.msgpack.Decoder(_Written)


@cache
def _decoder(name: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_TUPLES[name])


def _message(message: Any) -> _Message:
    return type(message).__name__, _encoder.encode(message)


def _event(written: _Message) -> Any:
    name, data = written
    return _decoder(name).decode(data)


def _outcome(outcome: Outcome) -> list[_Message] | str:
    return outcome if isinstance(outcome, str) else [_message(made) for made in outcome]


def _recorded(outcome: list[_Message] | str) -> Outcome:
    return outcome if isinstance(outcome, str) else [_event(made) for made in outcome]
