"""The header before a block: a reader is never sent to bytes that are not what it was promised."""

from __future__ import annotations

import struct

import pytest

from mpgrad.errors import ProtocolError
from mpgrad.shm.mapped_arena import check_header, write_header
from mpgrad.shm.segment import Segment

PAGE = 4096
OFFSET = 128


@pytest.fixture
def segment():
    return Segment.create(PAGE, "test")


def test_a_header_says_how_long_the_block_is(segment):
    write_header(segment, OFFSET, generation=7, nbytes=1000)
    assert check_header(segment, OFFSET, 7) == 1000


def test_the_header_keeps_to_its_64_bytes(segment):
    segment.buffer[:] = b"x" * PAGE
    write_header(segment, OFFSET, (1 << 64) - 1, PAGE - OFFSET)
    assert set(bytes(segment.buffer[: OFFSET - 64]) + bytes(segment.buffer[OFFSET:])) == {ord("x")}


@pytest.mark.parametrize("generation", [0, 6, 8, -1, 1 << 80])
def test_any_other_generation_is_stale(segment, generation):
    write_header(segment, OFFSET, 7, 1000)
    with pytest.raises(ProtocolError, match="stale handle"):
        check_header(segment, OFFSET, generation)


def test_memory_that_never_was_a_block_is_stale(segment):
    with pytest.raises(ProtocolError, match="holds generation none"):
        check_header(segment, OFFSET, 0)


@pytest.mark.parametrize("offset", [0, -64, 100, PAGE + 64, 1 << 40])
def test_a_place_where_no_block_can_lie_is_refused(segment, offset):
    with pytest.raises(ProtocolError):
        write_header(segment, offset, 1, 0)
    with pytest.raises(ProtocolError):
        check_header(segment, offset, 1)


def test_a_header_that_promises_too_much_is_refused(segment):
    write_header(segment, OFFSET, 7, 1000)
    struct.pack_into("<Q", segment.buffer, OFFSET - 64 + 16, PAGE)
    with pytest.raises(ProtocolError, match="no block"):
        check_header(segment, OFFSET, 7)
