"""SegmentPool: the best fit, merged again, and never two streams in one segment."""

from __future__ import annotations

import random

import pytest

from mpgrad.arrays.cuda.segment_pool import (
    ALIGNMENT_BYTES,
    MEDIUM_SEGMENT_BYTES,
    SEGMENT_GRANULARITY_BYTES,
    SegmentPlace,
    SegmentPool,
    segment_bytes,
)
from mpgrad.errors import InvariantViolated

MIB = 1 << 20


def with_segment(for_bytes: int, stream: int = 0) -> SegmentPool:
    pool = SegmentPool()
    pool.add_segment(0, segment_bytes(for_bytes), stream, for_bytes)
    return pool


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (1, SEGMENT_GRANULARITY_BYTES),
        (MIB, SEGMENT_GRANULARITY_BYTES),
        (MIB + 1, MEDIUM_SEGMENT_BYTES),
        (10 * MIB + 1, 12 * MIB),
        (64 * MIB, 64 * MIB),
    ],
)
def test_segments_are_whole_multiples_of_two_mebibytes(nbytes: int, expected: int) -> None:
    assert segment_bytes(nbytes) == expected
    assert expected % SEGMENT_GRANULARITY_BYTES == 0


def test_blocks_lie_side_by_side_and_aligned() -> None:
    pool = with_segment(100)
    assert pool.allocate(100, 0) == SegmentPlace(0, 0)
    assert pool.allocate(1000, 0) == SegmentPlace(0, ALIGNMENT_BYTES)
    assert pool.allocate(1, 0) == SegmentPlace(0, 3 * ALIGNMENT_BYTES)
    assert pool.used_bytes == 4 * ALIGNMENT_BYTES


def test_the_tightest_stretch_is_taken() -> None:
    pool = with_segment(100)
    places = [pool.allocate(n * ALIGNMENT_BYTES, 0) for n in (4, 1, 2, 1)]
    assert None not in places
    pool.free(places[0])
    pool.free(places[2])
    assert pool.allocate(2 * ALIGNMENT_BYTES, 0) == places[2]
    assert pool.allocate(2 * ALIGNMENT_BYTES, 0) == places[0]


def test_neighbours_are_merged_whatever_the_order_of_freeing() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        pool = with_segment(100)
        places = [pool.allocate(ALIGNMENT_BYTES, 0) for _ in range(3)]
        for index in order:
            pool.free(places[index])
            pool.check()
        assert pool.idle_segments() == [0]


def test_streams_and_sizes_have_their_own_segments() -> None:
    pool = with_segment(100, stream=1)
    assert pool.allocate(100, 2) is None
    assert pool.allocate(2 * MIB, 1) is None
    assert pool.allocate(100, 1) is not None


def test_a_used_segment_stays() -> None:
    pool = with_segment(100)
    place = pool.allocate(100, 0)
    with pytest.raises(InvariantViolated, match="in use"):
        pool.remove_segment(0)
    pool.free(place)
    with pytest.raises(InvariantViolated, match="no used block"):
        pool.free(place)
    pool.remove_segment(0)
    assert pool.held_bytes == 0


@pytest.mark.parametrize("seed", range(5))
def test_random_use(seed: int) -> None:
    rng, pool, live, segments = random.Random(seed), SegmentPool(), [], 0
    for _ in range(2000):
        if rng.random() < 0.52:
            nbytes, stream = int(2 ** rng.uniform(0, 25)), rng.choice([0, 7])
            place = pool.allocate(nbytes, stream)
            if place is None:
                pool.add_segment(segments, segment_bytes(nbytes), stream, nbytes)
                segments += 1
                place = pool.allocate(nbytes, stream)
            live.append(place)
        elif live:
            pool.free(live.pop(rng.randrange(len(live))))
        elif pool.idle_segments():
            pool.remove_segment(pool.idle_segments()[0])
        if rng.random() < 0.05:
            pool.check()
    for place in live:
        pool.free(place)
    pool.check()
    assert pool.used_bytes == 0
