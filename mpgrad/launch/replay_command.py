"""``mpgrad replay FILE``: what a process of the engine went through, and whether it does so again.

Exit status: 0 if the core gives the same instructions again, 1 if not, 2 if the file is no journal.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from mpgrad.errors import ProtocolError
from mpgrad.launch.event_text import brief, cut
from mpgrad.wire.journal import Outcome, Record
from mpgrad.wire.journal_file import JournalFile, from_bytes
from mpgrad.wire.replay import Difference, replay


def main(path: str, last: int) -> int:
    """Replay the journal at ``path`` and print its ``last`` events."""
    try:
        with open(path, "rb") as stream:
            journal = from_bytes(stream.read())
    except (OSError, ProtocolError) as error:
        print(f"mpgrad replay: {path}: {error}", file=sys.stderr)
        return 2
    _print_head(journal)
    entries = journal.record.entries
    for event, outcome in entries[max(0, len(entries) - last) :] if last > 0 else ():
        _print_entry(event, outcome)
    replayed = replay(journal.record)
    if replayed.difference is not None:
        _print_difference(replayed.difference)
        return 1
    print(
        f"replayed {replayed.events} events: the same {replayed.instructions} instructions, "
        f"digest {digest(journal.record)}"
    )
    return 0


def digest(record: Record) -> str:
    """A fingerprint of every field of every event and instruction."""
    return hashlib.sha256(repr(record.entries).encode()).hexdigest()[:16]


def _print_head(journal: JournalFile) -> None:
    print(f"coordinator (pid {journal.pid}), mpgrad {journal.version}, written {journal.written}")
    print(f"because: {journal.reason}")
    if journal.details:
        print(*(f"    {line}" for line in journal.details.splitlines()), sep="\n")


def _print_entry(event: Any, outcome: Outcome) -> None:
    print(cut(f"-> {brief(event)}"))
    for line in [f"raised {outcome}"] if isinstance(outcome, str) else map(brief, outcome):
        print(cut(f"       {line}"))


def _print_difference(found: Difference) -> None:
    print(f"event {found.number} has another outcome now:")
    _print_entry(found.event, found.recorded)
    print("now:")
    _print_entry(found.event, found.replayed)
