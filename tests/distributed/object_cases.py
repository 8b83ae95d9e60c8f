"""Collectives of objects, and a barrier that knows who is missing; every rank runs each case.

``mpgrad run --nproc-per-node 3 object_cases.py`` prints the name of each that went well.
"""

from __future__ import annotations

from datetime import timedelta

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad.distributed.carrier import zeromq_carrier
from tests.distributed.cases_of_ranks import error_of, run

zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
dist.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()
#: An object of each rank; the sizes of their pickles differ.
OBJECTS = [{"rank": 0}, ["text" * 1000, None], (3.5, b"bytes")]


def test_all_gather_object():
    found = [None] * RANKS
    dist.all_gather_object(found, OBJECTS[RANK])
    assert found == OBJECTS
    group = dist.new_group([0, 2])
    pair = [None] * 2
    dist.all_gather_object(pair, OBJECTS[RANK], group)
    assert pair == ([None] * 2 if RANK == 1 else [OBJECTS[0], OBJECTS[2]])


def test_gather_object():
    found = [None] * RANKS if RANK == 1 else None
    dist.gather_object(OBJECTS[RANK], found, dst=1)
    assert found == (OBJECTS if RANK == 1 else None)


def test_broadcast_object_list():
    found = list(OBJECTS) if RANK == 2 else [None] * RANKS
    dist.broadcast_object_list(found, src=2)
    assert found == OBJECTS
    dist.broadcast_object_list([], src=2)


def test_scatter_object_list():
    found = [None, "stays"]
    dist.scatter_object_list(found, OBJECTS if RANK == 0 else None, src=0)
    assert found == [OBJECTS[RANK], "stays"]


def test_tensors_are_objects_too():
    found = [None] * RANKS
    dist.all_gather_object(found, mg.full((2,), float(RANK)))
    assert [tensor.tolist() for tensor in found] == [[float(k)] * 2 for k in range(RANKS)]


def test_lists_that_do_not_fit_are_refused():
    too_short = [None] * (1 if RANK == 0 else RANKS)
    error_of(ValueError, lambda: dist.all_gather_object([None], 1))
    error_of(ValueError, lambda: dist.gather_object(1, too_short))
    error_of(ValueError, lambda: dist.scatter_object_list([], None))


def test_a_barrier_names_all_who_are_missing():
    dist.monitored_barrier()
    if RANK == 0:
        late = lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.1))  # noqa: E731
    else:  # they never come
        late = dist.irecv(mg.ones(1), 0).wait
    text = error_of(RuntimeError, late)
    assert "Rank 1 failed to pass monitoredBarrier in 100 ms; missing: 1, 2" in text


if __name__ == "__main__":
    cases = [value for name, value in dict(globals()).items() if name.startswith("test_")]
    run(cases)
