"""Backing: live blocks have pages, idle ones give them back, the recent peak is kept."""

from __future__ import annotations

import os

import pytest

from mpgrad.errors import SharedMemoryExhausted
from mpgrad.shm.backing import PEAK_WINDOW, STEP_BYTES, Backing
from mpgrad.shm.free_list import FreeList
from mpgrad.shm.segment import Segment

MIB = 1 << 20
SLACK = 2 * STEP_BYTES


class Bench:
    """A segment, its free list and its backing, with the pages that the kernel counts."""

    def __init__(self, limit: int = 64 * MIB, kept: int = 4 * MIB) -> None:
        self.segment = Segment.create(1 << 32, "test")
        self.free_list = FreeList(1 << 32, limit)
        self.backing = Backing(self.segment, self.free_list, kept_bytes=kept)

    def held(self) -> int:
        return os.fstat(self.segment.fd).st_blocks * 512

    def step(self, *sizes: int) -> list[int]:
        """Allocate blocks of these sizes, then free them; their offsets."""
        offsets = [self.backing.allocate(size)[0] for size in sizes]
        for offset in offsets:
            self.backing.free(offset)
        return offsets


def test_a_block_has_pages_before_it_is_touched():
    bench = Bench()
    bench.backing.allocate(10 * MIB)
    assert 10 * MIB <= bench.held() <= 10 * MIB + SLACK


def test_steps_of_the_same_sizes_take_no_new_pages():
    bench = Bench()
    offsets = bench.step(MIB, 2 * MIB, 3 * MIB)
    held = bench.held()
    for _ in range(20):
        assert sorted(bench.step(MIB, 2 * MIB, 3 * MIB)) == sorted(offsets)
    assert bench.held() == held


def test_an_emptied_block_gets_its_pages_back():
    bench = Bench()
    (offset,) = bench.step(8 * MIB)
    assert bench.backing.trim(0) > 7 * MIB
    assert bench.held() < SLACK
    assert bench.step(8 * MIB) == [offset]
    assert bench.held() >= 8 * MIB


def test_pages_are_made_once(monkeypatch):
    bench = Bench()
    bench.step(8 * MIB)
    bench.backing.trim(0)
    bench.step(8 * MIB)
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: pytest.fail("made again"))
    bench.step(8 * MIB)


def test_a_small_neighbour_does_not_refill_an_emptied_block():
    bench = Bench()
    small, large = bench.step(64, 8 * MIB)
    bench.backing.trim(0)
    assert bench.step(64) == [small]
    assert bench.held() < SLACK
    assert bench.step(8 * MIB) == [large]
    assert bench.held() >= 8 * MIB


def test_changing_sizes_do_not_pile_idle_pages_up():
    bench = Bench(limit=1 << 30)
    for size in range(8 * MIB, 16 * MIB, MIB // 4):
        bench.step(size)
        assert bench.held() <= 16 * MIB * 5 // 4 + 16 * MIB + 4 * MIB + SLACK


def test_idle_pages_count_towards_the_limit():
    bench = Bench(limit=32 * MIB, kept=1 << 30)
    for size in range(8 * MIB, 32 * MIB, 2 * MIB):
        bench.step(size)
        assert bench.held() <= 32 * MIB + SLACK


def test_an_old_peak_fades():
    bench = Bench(kept=MIB)
    bench.step(*[MIB] * 32)
    for _ in range(PEAK_WINDOW // 2):
        bench.step(64)
    assert bench.held() >= 32 * MIB
    for _ in range(2 * PEAK_WINDOW):
        bench.step(64)
    assert bench.held() <= MIB + SLACK


def test_a_block_without_pages_is_not_handed_out(monkeypatch):
    bench = Bench()
    with monkeypatch.context() as patch:

        def refuse(fd, offset, nbytes):
            raise OSError(12, "Cannot allocate memory")

        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(SharedMemoryExhausted) as caught:
            bench.backing.allocate(2 * MIB)
        assert (caught.value.requested, caught.value.used) == (2 * MIB, 0)
    assert bench.free_list.statistics().live_blocks == 0
    # The same block again: this time its pages must be made, although it counts as used before.
    bench.backing.allocate(2 * MIB)
    assert bench.held() >= 2 * MIB


def test_ctrl_c_while_pages_are_made_loses_no_block(monkeypatch):
    bench = Bench()

    def interrupt(fd, offset, nbytes):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "posix_fallocate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.backing.allocate(2 * MIB)
    assert bench.free_list.statistics().live_blocks == 0
    bench.free_list.check()
