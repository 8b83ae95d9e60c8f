"""FreeList against a plain model: where blocks lie, which is used again, which is emptied."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpgrad.errors import InvariantViolated, SharedMemoryExhausted
from mpgrad.shm.free_list import HEADER_BYTES, SMALLEST_PUNCHED_BYTES, FreeList, size_class

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096
LIMIT = 8 * MIB
CAPACITY = 64 * MIB


@given(st.integers(0, 1 << 45))
def test_size_classes_are_aligned_tight_and_stable(nbytes):
    size = size_class(nbytes)
    assert size >= max(nbytes, 1)
    assert size % 64 == 0
    assert size - nbytes <= max(64, nbytes / 8)
    assert size_class(size) == size


def test_each_octave_has_eight_classes():
    assert len({size_class(n) for n in range(MIB + 1, 2 * MIB + 1, 1000)}) == 8


class FreeListMachine(RuleBasedStateMachine):
    """Random use; the model holds each block's state in dicts and lists."""

    def __init__(self):
        super().__init__()
        self.blocks = FreeList(CAPACITY, LIMIT)
        self.live: dict[int, int] = {}
        self.warm: defaultdict[int, list[int]] = defaultdict(list)
        self.cold: defaultdict[int, list[int]] = defaultdict(list)
        self.freed_in_order: list[tuple[int, int]] = []
        self.end = 0
        self.generation = 0
        self.peak = 0

    @property
    def used(self):
        return sum(self.live.values())

    @property
    def idle(self):
        return sum(size for _, size in self.freed_in_order)

    @rule(
        nbytes=st.one_of(
            st.integers(0, 2 * KIB),
            st.sampled_from([60 * KIB, 64 * KIB, 100 * KIB, MIB, 3 * MIB]),
            st.integers(0, 5 * MIB),
        )
    )
    def allocate(self, nbytes):
        size = size_class(nbytes)
        if self.used + size > LIMIT:
            with pytest.raises(SharedMemoryExhausted) as caught:
                self.blocks.allocate(nbytes)
            assert (caught.value.requested, caught.value.used) == (nbytes, self.used)
            return
        if self.warm[size]:
            expected = self.warm[size].pop()
            self.freed_in_order.remove((expected, size))
        elif self.cold[size]:
            expected = self.cold[size].pop()
        elif self.end + HEADER_BYTES + size <= CAPACITY:
            expected = self.end + HEADER_BYTES
            self.end = expected + size
        else:
            return
        offset, generation = self.blocks.allocate(nbytes)
        self.generation += 1
        assert (offset, generation) == (expected, self.generation)
        self.live[offset] = size
        self.peak = max(self.peak, self.used)
        assert self.blocks.size_of(offset) == size
        assert offset in self.blocks._live

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.live)))
        size = self.live.pop(offset)
        self.blocks.free(offset)
        self.warm[size].append(offset)
        self.freed_in_order.append((offset, size))
        with pytest.raises(InvariantViolated, match=str(offset)):
            self.blocks.free(offset)

    @rule(idle_limit=st.integers(0, 4 * MIB))
    def take_idle(self, idle_limit):
        expected = []
        for offset, size in list(self.freed_in_order):
            if self.idle <= idle_limit:
                break
            if size >= SMALLEST_PUNCHED_BYTES:
                self.freed_in_order.remove((offset, size))
                self.warm[size].remove(offset)
                self.cold[size].append(offset)
                expected.append((offset, size))
        ranges = self.blocks.take_idle(idle_limit)
        assert len(ranges) == len(expected)
        for (start, nbytes), (offset, size) in zip(ranges, expected, strict=True):
            assert start % PAGE == 0
            assert nbytes % PAGE == 0
            assert nbytes > size - 2 * PAGE
            assert offset <= start
            assert start + nbytes <= offset + size

    @invariant()
    def the_book_is_right(self):
        self.blocks.check()
        assert self.blocks._high_water == self.end
        figures = self.blocks.statistics()
        assert figures.used_bytes == self.used
        assert figures.idle_bytes == self.idle
        assert figures.live_blocks == len(self.live)
        assert figures.peak_bytes == self.peak
        assert figures.limit_bytes == LIMIT

    @invariant()
    def no_two_blocks_overlap(self):
        end = 0
        for offset, size in sorted(self.live.items()):
            assert offset % 64 == 0
            assert offset - HEADER_BYTES >= end
            end = offset + size


TestFreeList = FreeListMachine.TestCase
TestFreeList.settings = settings(max_examples=60, stateful_step_count=40)


def test_the_block_freed_last_is_used_first():
    blocks = FreeList(CAPACITY, LIMIT)
    first, second = blocks.allocate(100_000)[0], blocks.allocate(100_000)[0]
    blocks.free(first)
    blocks.free(second)
    assert blocks.allocate(100_000)[0] == second
    assert blocks.allocate(100_000)[0] == first


def test_an_emptied_block_is_used_after_every_warm_one():
    blocks = FreeList(CAPACITY, LIMIT)
    emptied, warm = blocks.allocate(MIB)[0], blocks.allocate(MIB)[0]
    blocks.free(emptied)
    assert blocks.take_idle(0)
    blocks.free(warm)
    assert [blocks.allocate(MIB)[0], blocks.allocate(MIB)[0]] == [warm, emptied]


def test_of_emptied_blocks_the_one_emptied_last_is_used_first():
    blocks = FreeList(CAPACITY, LIMIT)
    first, second = blocks.allocate(MIB)[0], blocks.allocate(MIB)[0]
    blocks.free(first)
    blocks.free(second)
    assert len(blocks.take_idle(0)) == 2
    assert [blocks.allocate(MIB)[0], blocks.allocate(MIB)[0]] == [second, first]


def test_small_blocks_keep_their_pages():
    blocks = FreeList(CAPACITY, LIMIT)
    blocks.free(blocks.allocate(60_000)[0])
    assert blocks.take_idle(0) == []


def test_a_full_address_space_lends_a_larger_block():
    blocks = FreeList(capacity=2 * MIB + 128, limit=LIMIT)
    large = blocks.allocate(2 * MIB)[0]
    with pytest.raises(SharedMemoryExhausted):
        blocks.allocate(KIB)
    blocks.free(large)
    assert blocks.allocate(KIB)[0] == large
    assert blocks.size_of(large) == 2 * MIB
    blocks.check()
    blocks.free(large)
    blocks.take_idle(0)
    assert blocks.allocate(KIB)[0] == large
    blocks.check()


@pytest.mark.parametrize("offset", [0, 63, 64 + 64, 1 << 30])
def test_a_stray_offset_is_found_out(offset):
    blocks = FreeList(CAPACITY, LIMIT)
    blocks.allocate(1000)
    with pytest.raises(InvariantViolated):
        blocks.free(offset)
    with pytest.raises(InvariantViolated):
        blocks.size_of(offset)
    assert offset not in blocks._live


def test_a_negative_size_is_refused():
    with pytest.raises(InvariantViolated):
        FreeList(CAPACITY, LIMIT).allocate(-1)


@pytest.mark.parametrize("field", ["used_bytes", "idle_bytes", "_high_water", "_peak"])
def test_check_notices_a_wrong_figure(field):
    blocks = FreeList(CAPACITY, LIMIT)
    blocks.free(blocks.allocate(MIB)[0])
    blocks.allocate(KIB)
    setattr(blocks, field, getattr(blocks, field) - 2 * MIB)
    with pytest.raises(InvariantViolated):
        blocks.check()


def test_check_notices_an_overlap():
    blocks = FreeList(CAPACITY, LIMIT)
    offset, _ = blocks.allocate(MIB)
    blocks._live[offset + 64] = blocks._live.pop(offset)
    with pytest.raises(InvariantViolated, match="overlap"):
        blocks.check()
