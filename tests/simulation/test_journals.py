"""Every World's journal, cut into short segments, runs again from each of its starts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import pytest

from mpgrad.errors import ProtocolError
from mpgrad.scheduler import events as ev
from mpgrad.scheduler.coordinator_state import CoordinatorState
from mpgrad.scheduler.coordinator_tables import CoordinatorTables
from mpgrad.scheduler.membership import Membership
from mpgrad.shm.free_list import FreeList
from mpgrad.wire import journal as journal_module
from mpgrad.wire import replay as replay_module
from mpgrad.wire.journal import Journal, Record, tables_of
from mpgrad.wire.journal_file import MAGIC, JournalFile, from_bytes, to_bytes
from mpgrad.wire.replay import replay
from simulation import World
from simulation.faults import NO_FAULTS

#: Events in a segment: most Worlds see several begin while graphs are alive.
SHORT = 16


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs here are small: tables are copied all the same while they are alive."""
    monkeypatch.setattr(journal_module, "PATIENCE", 1)
    monkeypatch.setattr(journal_module, "BYTES_PER_EVENT", 10_000)


def journal_of(seed: int, journal_events: int = SHORT) -> JournalFile:
    world = World(seed, workers=3, graphs=3, sessions=2, journal_events=journal_events).run()
    record = world.coordinator.journal.record()
    return JournalFile(1, "0", "", "a test", "", record)


@pytest.mark.slow
def test_worlds_replay() -> None:
    alive = 0
    for seed in range(80):
        journal = journal_of(seed)
        written = from_bytes(to_bytes(journal))
        assert written.record.entries == journal.record.entries
        for record in (journal.record, written.record):
            again = replay(record)
            assert again.difference is None, (seed, again.difference)
            assert again.events == len(record.entries)
        alive += bool(tables_of(journal.record.start).graphs)
    # The hard case: the tables were copied in the middle of a backward.
    assert alive > 20


def test_a_journal_is_whole_until_it_is_long() -> None:
    whole = [journal_of(seed, journal_events=10_000).record for seed in range(12)]
    for record in whole:
        assert tables_of(record.start).graphs == {}
        first = record.entries[0][0]
        assert isinstance(first, ev.SessionOpened | ev.WorkerJoined | ev.WorkerUnavailable)
        assert replay(record).difference is None
    cut = [journal_of(seed).record for seed in range(12)]
    assert sum(len(record.entries) for record in cut) < sum(len(r.entries) for r in whole)


def test_a_forgotten_table_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """If somebody adds a field that a snapshot leaves out, this file must notice."""

    def without_attempts(start: bytes) -> CoordinatorTables:
        tables = tables_of(start)
        for graph in tables.graphs.values():
            graph.attempts.clear()
        return tables

    monkeypatch.setattr(replay_module, "tables_of", without_attempts)
    with pytest.raises(AssertionError, match="Difference"):
        test_worlds_replay()


def test_the_first_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [journal_of(seed, journal_events=10_000).record for seed in range(4)]
    right = Membership.choose_worker

    def wrong(self, **wanted):
        found = right(self, **wanted)
        others = [worker for worker in self.workers() if worker is not found]
        return others[0] if found is not None and others else found

    monkeypatch.setattr(Membership, "choose_worker", wrong)
    # A world with one worker shows none.
    replayed = ((record, replay(record)) for record in records)
    record, found = next(pair for pair in replayed if pair[1].difference is not None)
    assert found.difference is not None
    assert found.difference.number == found.events > 0
    assert record.entries[found.events] == found.difference[1:3]
    assert found.difference.recorded != found.difference.replayed


def test_what_an_event_raises_belongs_to_the_record() -> None:
    core = CoordinatorState(FreeList(1 << 20, 1 << 20, "arena"))
    journal = Journal(core.handle_event, core.tables)
    with pytest.raises(ProtocolError):
        journal.handle_event(ev.GraphCancelled("c1.0", 1, grace_ms=-1))
    (entry,) = journal.record().entries
    assert entry[1] == "ProtocolError: c1.0 gives a graph -1 ms to end"
    assert replay(journal.record()).difference is None


def test_what_is_too_large_to_keep_begins_a_new_record() -> None:
    record = journal_of(5, journal_events=10_000).record
    world = World(5, workers=3, graphs=3, sessions=2).run()
    journal, core = world.coordinator.journal, world.coordinator.core
    journal.handle_unrecorded(ev.OutputEmitted("w0.1", 99, "stdout", b"x" * 100_000))
    assert journal.record().entries == []
    assert list(tables_of(journal.record().start).membership.members) == list(
        core.membership.members
    )
    assert replay(record).difference is None


def test_a_large_graph_is_let_go_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "HEAVY_TASKS", 5)
    for seed in range(20):
        record = journal_of(seed, journal_events=10_000).record
        assert replay(record).difference is None
        tables = (ev.GraphSubmitted, ev.GraphExtended)
        assert sum(len(e.tasks) for e, _ in record.entries if isinstance(e, tables)) <= 5


#: What tables know beside their fields: what follows from these, and what belongs to the process.
UNWRITTEN = {"_allocator", "_workers", "_slot"}


def tables_in(value: object) -> Iterator[object]:
    """All dataclasses in ``value``."""
    if dataclasses.is_dataclass(value):
        yield value
        for name in [field.name for field in dataclasses.fields(value)]:
            yield from tables_in(getattr(value, name))
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tables_in(item)


def test_whatever_a_table_knows_is_a_field_of_it() -> None:
    """msgspec writes fields; an attribute beside them would be forgotten."""
    world = World(7, workers=2, graphs=3, faults=NO_FAULTS)
    seen: Counter[str] = Counter()

    def look(event: object) -> None:
        for table in tables_in(world.coordinator.core.tables):
            seen[type(table).__name__] += 1
            fields = {field.name for field in dataclasses.fields(table)}
            assert set(getattr(table, "__dict__", ())) <= fields | UNWRITTEN

    world.coordinator.situations.before = look
    world.run()
    tables = "CoordinatorTables GraphTask InputBuffer LeaseTable MemberRecord Membership ReadyQueue"
    assert sorted(seen) == tables.split()


@pytest.mark.parametrize("damage", ["magic", "cut", "class", "list"])
def test_a_damaged_file_is_refused(damage: str) -> None:
    data = to_bytes(JournalFile(1, "0", "", "", "", Record(b"", [], [])))
    damaged = {
        "magic": data[1:],
        "cut": data[:-1],
        "class": to_bytes(journal_of(1, 10_000)).replace(b"GraphSubmitted", b"GraphSubmittex"),
        "list": MAGIC + b"\x01",
    }[damage]
    with pytest.raises(ProtocolError, match=r"no journal|damaged"):
        from_bytes(damaged)
