"""A Journal as a file: what it holds, in plain msgpack, so that reading one runs no code.

Events and instructions are written as typed msgpack, as on the wire; tables by the names of their
classes and fields. Nothing else can stand in such a file.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from mpgrad import handles
from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events, instructions, membership, plan, ready_queue
from mpgrad.scheduler.graph_task import GraphPhase, TaskState
from mpgrad.scheduler.input_buffer import MISSING
from mpgrad.scheduler.journal import Record
from mpgrad.scheduler.snapshot import OUTSIDE, TABLE_CLASSES, fields_of

MAGIC = b"mpgrad journal 2\n"


class JournalFile(NamedTuple):
    """What a coordinator wrote down about itself.

    Attributes:
        pid: its process id.
        version: of mpgrad.
        written: when, in ISO 8601.
        reason: why; for an error its type and text.
        details: the traceback.
        record: see ``Journal``.
    """

    pid: int
    version: str
    written: str
    reason: str
    details: str
    record: Record


def to_bytes(journal: JournalFile) -> bytes:
    """The content of a file."""
    start, entries, answers = journal.record
    plain = (
        *journal[:-1],
        _plain(start),
        [(_message(event), _outcome(outcome)) for event, outcome in entries],
        answers,
    )
    return MAGIC + msgspec.msgpack.encode(plain)


def from_bytes(data: bytes) -> JournalFile:
    """What ``to_bytes`` wrote.

    Raises:
        ProtocolError: it is no journal, or one of another version's.
    """
    if not data.startswith(MAGIC):
        raise ProtocolError("this is no journal, or one of another version of mpgrad")
    try:
        plain = msgspec.msgpack.decode(memoryview(data)[len(MAGIC) :])
        pid, version, written, reason, details, start, entries, answers = plain
        record = Record(
            _restored(start),
            [(_event(event), _recorded(outcome)) for event, outcome in entries],
            [tuple(answer) for answer in answers],
        )
        return JournalFile(pid, version, written, reason, details, record)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ProtocolError(f"the journal is damaged, or of another version: {error}") from None


# ----------------------------------------------------------------------- messages


def _tuples_of(*modules: Any) -> dict[str, type[Any]]:
    """The NamedTuples of some files, by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
    }


_TUPLES = _tuples_of(handles, events, instructions, membership, plan, ready_queue)
_ENUMS: dict[str, type[Enum]] = {cls.__name__: cls for cls in (GraphPhase, TaskState)}
_TABLES = {cls.__name__: cls for cls in TABLE_CLASSES}
_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(name: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_TUPLES[name])


def _message(message: Any) -> tuple[str, bytes]:
    """An event or instruction: its class, and its fields."""
    return type(message).__name__, _encoder.encode(message)


def _event(written: tuple[str, bytes]) -> Any:
    name, data = written
    return _decoder(name).decode(data)


def _outcome(outcome: Any) -> Any:
    return outcome if isinstance(outcome, str) else [_message(made) for made in outcome]


def _recorded(outcome: Any) -> Any:
    return outcome if isinstance(outcome, str) else [_event(made) for made in outcome]


# ----------------------------------------------------------------------- tables

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})


def _plain(value: Any) -> Any:
    """Atoms as they are; everything else as a list that begins with its kind."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in TABLE_CLASSES:
        fields = [
            (name, None if name in OUTSIDE.get(kind, ()) else _plain(getattr(value, name)))
            for name in fields_of(value)
        ]
        return ["table", kind.__name__, fields]
    if kind is dict or kind is Counter:
        return [kind.__name__, [(_plain(key), _plain(item)) for key, item in value.items()]]
    if kind in (list, tuple):
        return [kind.__name__, [_plain(item) for item in value]]
    if kind is set:
        return ["set", sorted(value)]
    if isinstance(value, Enum):
        return ["enum", kind.__name__, value.value]
    if value is MISSING:
        return ["missing"]
    return ["named", *_message(value)]


def _restored(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, *rest = plain
    if kind == "table":
        table = object.__new__(_TABLES[rest[0]])
        for name, item in rest[1]:
            setattr(table, name, _restored(item))
        return table
    if kind == "enum":
        return _ENUMS[rest[0]](rest[1])
    if kind == "named":
        return _event((rest[0], rest[1]))
    if kind == "missing":
        return MISSING
    if kind in ("dict", "Counter"):
        pairs = {_restored(key): _restored(item) for key, item in rest[0]}
        return Counter(pairs) if kind == "Counter" else pairs
    return {"list": list, "tuple": tuple, "set": set}[kind](_restored(item) for item in rest[0])
