"""Ranks of groups, any sender, parts of unequal size, groups made at once; all ranks run each case.

``mpgrad run --nproc-per-node 3 group_cases.py`` prints the name of each that went well.
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
#: Rank 2 of the world is rank 1 of it.
PAIR = dist.new_group([0, 2])


def mine(*shape, dtype=mg.float32):
    return mg.full(shape, float(RANK + 1), dtype=dtype)


def test_whoever_sends_first_is_received():
    for _ in range(3):
        if RANK == 0:
            came = mg.zeros(2), mg.zeros(2)
            first = dist.recv(came[0])
            work = dist.irecv(came[1])
            assert work.source_rank() == -1 or work.is_completed()
            work.wait()
            assert {first, work.source_rank()} == {1, 2}
            assert [c.tolist() for c in came] == [[k + 1.0] * 2 for k in (first, 3 - first)]
        else:
            dist.send(mine(2), 0)
        dist.barrier()


def test_a_sender_that_is_named_keeps_its_order_beside_any():
    if RANK == 0:
        dist.barrier()  # all four are there
        found = [mg.zeros(1) for _ in range(4)]
        assert dist.recv(found[0], 2) == 2
        senders = [dist.recv(found[1]), dist.recv(found[2], 1), dist.recv(found[3])]
        assert sorted([2, *senders]) == [1, 1, 2, 2]
        of_2 = [x.item() for x, k in zip(found, [2, *senders], strict=True) if k == 2]
        assert of_2 == [20.0, 21.0]
    else:
        for k in range(2):
            dist.send(mg.tensor([10.0 * RANK + k]), 0)
        dist.barrier()


def test_any_sender_of_a_group():
    if RANK == 0:
        x = mg.zeros(1)
        assert dist.recv(x, group=PAIR, tag=7) == 2
        assert x.item() == 3.0
    elif RANK == 2:
        dist.send(mine(1), group=PAIR, tag=7, group_dst=0)
    elif RANK == 1:
        assert dist.recv(mg.zeros(1), group=PAIR) == -1


def test_a_rank_of_the_group_in_place_of_one_of_the_world():
    x = mine(2)
    dist.broadcast(x, group=PAIR, group_src=1)
    assert x.tolist() == [RANK + 1.0 if RANK == 1 else 3.0] * 2
    x = mine(2)
    dist.reduce(x, group=PAIR, group_dst=1)
    assert x.tolist() == [4.0 if RANK == 2 else RANK + 1.0] * 2
    parts = [mg.zeros(2), mg.zeros(2)] if RANK == 2 else None
    dist.gather(mine(2), parts, group=PAIR, group_dst=1)
    assert parts is None or [part.tolist() for part in parts] == [[1.0] * 2, [3.0] * 2]
    x = mg.zeros(2)
    dist.scatter(x, [mine(2), mine(2) + 1] if RANK == 2 else None, group=PAIR, group_src=1)
    assert x.tolist() == [{0: 3.0, 1: 0.0, 2: 4.0}[RANK]] * 2
    found = ["two"] if RANK == 2 else [None]
    dist.broadcast_object_list(found, group=PAIR, group_src=1)
    assert found == [None if RANK == 1 else "two"]
    if RANK != 1:
        text = error_of(ValueError, lambda: dist.broadcast(x, 0, PAIR, group_src=1))
        assert text == "Can't specify both group_rank and global_rank"
        text = error_of(ValueError, lambda: dist.broadcast(x, group=PAIR))
        assert text == "Must specify global_rank or group_rank"


def test_all_to_all_with_parts_of_unequal_size():
    row = mg.arange(2 * (RANK + 1) * RANKS, dtype=mg.float32).reshape(-1, 2) + 100 * RANK
    sizes = [[1, 2, 0], [2, 1, 3], [0, 4, 5]]  # what rank j sends to rank k
    source = mg.cat([row, row])[: sum(sizes[RANK])]
    output = mg.zeros(sum(of[RANK] for of in sizes), 2)
    dist.all_to_all_single(output, source, [of[RANK] for of in sizes], sizes[RANK])
    alls = [None] * RANKS
    dist.all_gather_object(alls, source.tolist())
    expected = [x for all_of, of in zip(alls, sizes, strict=True) for x in part(all_of, of, RANK)]
    assert output.tolist() == expected
    outputs = [mg.zeros(of[RANK], 2) for of in sizes]
    dist.all_to_all(outputs, list(mg.split(source, sizes[RANK])))
    assert [x for out in outputs for x in out.tolist()] == expected
    text = error_of(ValueError, lambda: dist.all_to_all_single(output, source, [1, 2], None))
    assert "Number of tensor splits not equal to group size" in text
    wrong = lambda: dist.all_to_all_single(output, source, [9, 9, 9], sizes[RANK])  # noqa: E731
    assert "doesn't match total dim 0 size" in error_of(ValueError, wrong)


def part(rows, sizes, rank):
    first = sum(sizes[:rank])
    return rows[first : first + sizes[rank]]


def test_several_tensors_at_once():
    parts = [mine(2), mine(3), mine(1, dtype=mg.complex64) * 1j]
    dist.all_reduce_coalesced(parts)
    assert [x.tolist() for x in parts] == [[6.0] * 2, [6.0] * 3, [6j]]
    outputs = [[mg.zeros(2), mg.zeros(1)] for _ in range(RANKS)]
    future = dist.all_gather_coalesced(outputs, [mine(2), mine(1)], async_op=True)
    future.wait()
    assert [[x.tolist() for x in of] for of in outputs] == [
        [[k + 1.0] * 2, [k + 1.0]] for k in range(RANKS)
    ]


def test_complex_numbers_have_no_order_and_no_product():
    x = mine(1, dtype=mg.complex64)
    for op in ("MIN", "MAX", "PRODUCT", "BAND"):
        text = error_of(ValueError, lambda op=op: dist.all_reduce(x, dist.ReduceOp[op]))
        assert text == f"all_reduce does not support ReduceOp.{op} on complex tensors"


def test_sends_and_receives_in_one_batch():
    x = [mg.zeros(1), mg.zeros(1)]
    right, left = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    ops = [dist.P2POp(dist.irecv, x[0], left), dist.P2POp(dist.isend, mine(1), right)]
    ops += [
        dist.P2POp(dist.isend, mine(1), left, tag=1),
        dist.P2POp(dist.irecv, x[1], right, tag=1),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert [y.item() for y in x] == [left + 1.0, right + 1.0]
    assert "Invalid ``op``" in error_of(RuntimeError, lambda: dist.P2POp(dist.recv, x[0], left))
    assert "p2p_op_list" in error_of(ValueError, lambda: dist.batch_isend_irecv([]))


def test_groups_made_at_once():
    here, groups = dist.new_subgroups(1)
    assert here is groups[RANK]
    assert [group.ranks for group in groups] == [(0,), (1,), (2,)]
    here, groups = dist.new_subgroups_by_enumeration([[0, 2]])
    assert (here is None) == (RANK == 1)
    text = error_of(ValueError, lambda: dist.new_subgroups(2))
    assert text == "The world size (3) must be divisible by 'group_size=2'"
    text = error_of(ValueError, lambda: dist.new_subgroups_by_enumeration([[0, 1], [1, 2]]))
    assert text == "Rank 1 has appeared in both subgroup [0, 1] and [1, 2]"
    text = error_of(ValueError, lambda: dist.new_group([3]))
    assert text == "Rank 3 is out of range. Valid ranks are 0 to 2 (world_size=3)"


def test_names_of_backends_and_of_the_world():
    assert dist.Backend("GLOO") == dist.Backend.GLOO == "gloo"
    assert "string-ish" in error_of(ValueError, lambda: dist.Backend(None))
    assert dist.is_gloo_available()
    assert not dist.is_nccl_available()
    assert dist.is_backend_available("cpu:gloo,cuda:nccl")
    assert not dist.is_backend_available("carrier pigeon")
    assert dist.get_rank(dist.group.WORLD) == RANK


def test_what_took_too_long_says_so():
    if RANK == 0:
        late = lambda: dist.barrier(PAIR, timeout=timedelta(milliseconds=20))  # noqa: E731
        text = error_of(mg.errors.CollectiveTimeout, late)
        assert text == "barrier: Timed out waiting 20ms for rank 2"
    else:  # they never come
        text = error_of(RuntimeError, dist.irecv(mg.ones(1)).wait)
        assert RANK == 1 or "rank 0 in barrier: Timed out waiting 20ms for rank 2" in text


if __name__ == "__main__":
    cases = [value for name, value in dict(globals()).items() if name.startswith("test_")]
    run(cases)
