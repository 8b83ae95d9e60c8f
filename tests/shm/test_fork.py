"""After os.fork: the child may use its tensors, and nothing that it does reaches the parent."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

from mpgrad.shm import arena as arena_module
from mpgrad.shm.arena import Arena, client_arena

MIB = 1 << 20


@pytest.fixture
def arena():
    return Arena(MIB, "test", capacity_bytes=1 << 30)


def in_child(function) -> str:
    """What ``function`` returns in a forked child, or the child's exception."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, Python 3.12
        pid = os.fork()
    if pid == 0:
        try:
            answer = str(function())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def test_a_forked_child_reads_its_tensors_and_cannot_touch_the_parents(arena):
    array = arena.empty((1000,), np.int64)
    array.fill(1)

    def child():
        before = array.sum()
        array.fill(2)
        return before, array.sum(), arena.segment.fd

    assert in_child(child) == "(np.int64(1000), np.int64(2000), -1)"
    assert array.sum() == 1000


def test_without_a_descriptor_a_forked_child_can_only_read(arena):
    array = arena.empty((1000,), np.int64)
    array.fill(1)
    arena.close()

    def child():
        start = f"{arena.segment.address:x}-"
        with open("/proc/self/maps") as lines:
            permissions = next(line.split()[1] for line in lines if line.startswith(start))
        return array.sum(), permissions

    assert in_child(child) == "(np.int64(1000), 'r--s')"


def test_a_forked_child_cannot_allot_from_the_parents_arena(arena):
    assert in_child(lambda: arena.empty((10,), np.int64)).startswith(
        "InvariantViolated: arena test"
    )


def test_a_forked_child_gets_an_arena_of_its_own(monkeypatch):
    monkeypatch.setenv("MPGRAD_SHM_LIMIT", "64M")
    parents = client_arena()
    array = parents.empty((5000,), np.int64)
    array.fill(1)

    def child():
        own = client_arena().empty((5000,), np.int64)
        own.fill(2)
        return (
            client_arena() is not parents,
            client_arena().locate(array),
            client_arena().locate(own) is not None,
            int(own.sum() + array.sum()),
        )

    # A thread of the parent may hold any of its locks at the time of the fork.
    with arena_module._client_arena_lock, parents._lock:
        assert in_child(child) == "(True, None, True, 15000)"
    assert client_arena() is parents
