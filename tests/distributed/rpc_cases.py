"""What remote calls have to do, under the names of PyTorch's tests; every rank runs each case.

``mpgrad run --nproc-per-node 3 rpc_cases.py`` prints the name of each case that went well.
"""

from __future__ import annotations

import gc
import operator
import os
import pickle
import threading

import numpy as np

import mpgrad as mg
import mpgrad.distributed.rpc as rpc
from mpgrad.distributed import futures
from mpgrad.distributed.rpc import RRef, functions
from mpgrad.distributed.rpc.current_service import service
from tests.distributed.cases_of_ranks import run
from tests.leftovers import wait_until

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NEXT, AFTER = (RANK + 1) % RANKS, (RANK + 2) % RANKS
NAME = f"worker{NEXT}"

calls: list[int] = []


class Failure(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Counter:
    def __init__(self, value: object) -> None:
        self.value = value

    def add(self, number: object, times: int = 1) -> object:
        self.value = self.value + number * times
        return self.value

    def itself(self) -> Counter:
        return self

    @staticmethod
    @functions.async_execution
    def adds_elsewhere(to, a, b):
        return rpc.rpc_async(to, add, (a, b)).then(lambda future: future.wait() + 100)

    @functions.async_execution
    def adds_own_elsewhere(self, to, a):
        return rpc.rpc_async(to, add, (a, self.value)).then(lambda future: future.wait() + 100)


class Unpicklable:
    def __reduce__(self):
        raise ValueError("it stays here")


def unpicklable():
    return Unpicklable()


def returns_a_future():
    return futures.Future()


def note(number):
    calls.append(number)
    return len(calls)


def add(a, b=1, *, c=0):
    return a + b + c


def fail(number):
    raise Failure(number, f"number {number}")


def own_rank():
    return rpc.get_worker_info().id


def chain(depth):
    return own_rank() if depth == 0 else rpc.rpc_sync((own_rank() + 1) % RANKS, chain, (depth - 1,))


def from_reference(reference, factor=1):
    return reference.to_here() * factor


def forwarded(reference, left):
    if left == 0:
        return reference.to_here()
    return rpc.rpc_sync((own_rank() + 1) % RANKS, forwarded, (reference, left - 1))


def new_reference(value):
    return RRef(value)


def passed_through(reference):
    return reference


def owned(reference):
    return reference.is_owner(), reference.local_value() if reference.is_owner() else None


def sleeps(event_owner):
    return rpc.rpc_sync(event_owner, waits)


released = threading.Event()


def waits():
    return released.wait(60)


def release():
    released.set()


@functions.async_execution
def adds_there(to, a, b):
    return rpc.rpc_async(to, add, (a, b)).then(lambda future: future.wait() + 100)


@functions.async_execution
def fails_there(to):
    return rpc.rpc_async(to, fail, (4,))


@functions.async_execution
def no_future():
    return 3


def raised(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")


# ---------------------------------------------------------------------------- calls


def test_worker_id():
    assert rpc.get_worker_info() == (f"worker{RANK}", RANK)
    assert rpc.get_worker_info(NAME).id == NEXT
    assert "could not find destination 'nobody'" in str(
        raised(RuntimeError, rpc.get_worker_info, "nobody")
    )


def test_reinit():
    assert "already initialized" in str(raised(RuntimeError, rpc.init_rpc, "again"))
    raised(TypeError, rpc.init_rpc, "again", "TENSORPIPE")
    raised(TypeError, rpc.init_rpc, "again", rpc.BackendType.TENSORPIPE, RANK, RANKS, {})


def test_invalid_names():
    assert "could not find destination 17" in str(raised(RuntimeError, rpc.rpc_sync, 17, add))
    raised(TypeError, rpc.rpc_sync, NAME, "no function")


def test_add():
    result = rpc.rpc_sync(NAME, mg.add, (mg.ones(2, 2), mg.ones(2, 2)))
    assert np.array_equal(result, mg.full((2, 2), 2.0))


def test_self_add():
    assert rpc.rpc_sync(RANK, add, (1, 2)) == 3
    assert rpc.rpc_async(f"worker{RANK}", mg.add, (mg.ones(1), 1)).wait().item() == 2


def test_py_built_in():
    assert rpc.rpc_sync(NAME, min, (3, 1, 2)) == 1
    assert rpc.rpc_sync(NAME, operator.mul, (3, 4)) == 12


def test_py_user_defined():
    assert rpc.rpc_sync(NAME, add, (1,), {"c": 10}) == 12


def test_py_function_of_main_is_that_of_the_callee():
    before = rpc.rpc_sync(NAME, note, (RANK,))
    assert rpc.rpc_sync(NAME, note, (RANK,)) > before
    assert RANK not in calls


def test_py_function_by_value():
    factor = 10 + RANK
    assert rpc.rpc_sync(NAME, lambda x: x * factor, (2,)) == 2 * factor

    class Local:
        number = factor

    assert rpc.rpc_sync(NAME, lambda: Local().number) == factor


def test_py_class_constructor():
    assert rpc.rpc_sync(NAME, Counter, (3,)).value == 3


def test_py_class_method():
    assert rpc.rpc_sync(NAME, Counter(3).add, (4,), {"times": 2}) == 11


def test_py_tensors():
    nested = {"a": [mg.ones(3), (mg.zeros(2), None)], "b": mg.arange(5)}
    result = rpc.rpc_sync(NAME, passed_through, (nested,))
    assert np.array_equal(result["a"][1][0], mg.zeros(2))
    assert np.array_equal(result["b"], mg.arange(5))
    result["b"][0] = 7  # its memory is ours


def test_py_tensors_multi_async_call():
    answers = [rpc.rpc_async(NAME, add, (mg.full((2,), float(k)),)) for k in range(50)]
    assert [answer.wait()[0].item() for answer in answers] == [k + 1.0 for k in range(50)]


def test_large_tensors():
    large = mg.full((5_000_000,), 1.5)
    assert rpc.rpc_sync(NAME, add, (large,)).sum().item() == 12_500_000


def test_grad_only_on_leaves():
    leaf = mg.ones(2, requires_grad=True)
    result = rpc.rpc_sync(NAME, passed_through, (leaf * 2,))
    assert result.is_leaf
    assert result.requires_grad


def test_py_raise_in_user_func():
    error = raised(Failure, rpc.rpc_sync, NAME, fail, (7,))
    assert (error.number, str(error)) == (7, "number 7")
    assert error.__notes__ == [f"raised in rank {NEXT} ({NAME})"]
    assert "in fail" in str(error.__cause__)


def test_wrong_arguments():
    raised(TypeError, rpc.rpc_sync, NAME, add, (1, 2, 3))
    error = raised(TypeError, rpc.rpc_sync, NAME, add, (threading.Lock(),))
    assert "a call of add cannot travel to another host" in str(error)
    error = raised(TypeError, rpc.rpc_sync, NAME, threading.Lock)
    assert f"the result of a call of {threading.Lock.__name__} cannot travel" in str(error)


def test_nested_rpc():
    assert rpc.rpc_sync(NAME, chain, (40,)) == (NEXT + 40) % RANKS


def test_stress_light_rpc():
    for k in range(200):
        assert rpc.rpc_sync(NAME, add, (k,)) == k + 1


def test_rpc_timeouts():
    error = raised(RuntimeError, rpc.rpc_sync, NAME, waits, timeout=0.05)
    assert f"RPC ran for more than set timeout: waits in rank {NEXT}" in str(error)
    rpc.rpc_sync(NAME, release)
    assert rpc.rpc_sync(NAME, waits, timeout=0)


def test_async_function_simple():
    assert rpc.rpc_sync(NAME, adds_there, (AFTER, 1, 2)) == 103
    assert rpc.remote(NAME, adds_there, (AFTER, 1, 2)).to_here() == 103


def test_async_function_raise():
    assert raised(Failure, rpc.rpc_sync, NAME, fails_there, (AFTER,)).number == 4


def test_async_function_wrong_return_type():
    error = raised(RuntimeError, rpc.rpc_sync, NAME, no_future)
    assert "must return a Future" in str(error)


def test_async_class_rref_proxy():
    there = rpc.remote(NAME, Counter, (5,))
    after = f"worker{AFTER}"
    assert there.rpc_sync().adds_elsewhere(after, 1, 2) == 103
    assert there.rpc_async().adds_own_elsewhere(after, 1).wait() == 106
    assert there.remote().adds_own_elsewhere(after, 2).to_here() == 107


def test_what_is_returned_cannot_travel():
    error = raised(TypeError, rpc.rpc_sync, NAME, returns_a_future)
    assert "Can not pickle a Future" in str(error)
    assert "it stays here" in str(raised(ValueError, rpc.rpc_sync, NAME, unpicklable))


def test_a_place_that_is_no_name_and_no_rank():
    assert "Cannot get WorkerInfo" in str(raised(ValueError, rpc.rpc_sync, 0.5, add, (1,)))


# ---------------------------------------------------------------------------- futures


def test_callback_simple():
    future = rpc.rpc_async(NAME, add, (1,))
    assert future.then(lambda done: done.wait() + 40).wait() == 42
    assert future.done()


def test_callback_chain():
    future = rpc.rpc_async(NAME, add, (0,))
    for _ in range(20):
        future = future.then(lambda done: done.value() + 1)
    assert future.wait() == 21


def test_callback_with_error():
    future = rpc.rpc_async(NAME, fail, (3,)).then(lambda done: done.wait())
    assert raised(Failure, future.wait).number == 3


def test_wait_all():
    assert futures.wait_all([rpc.rpc_async(NAME, add, (k,)) for k in range(4)]) == [1, 2, 3, 4]
    assert futures.wait_all([]) == []
    raised(
        Failure, futures.wait_all, [rpc.rpc_async(NAME, fail, (3,)), rpc.rpc_async(NAME, add, (3,))]
    )


def test_wait_all_exit_early():
    never = futures.Future()
    raised(Failure, futures.wait_all, [never, rpc.rpc_async(NAME, fail, (3,))])
    assert not never.done()


def test_callback_none():
    raised(TypeError, rpc.rpc_async(NAME, add, (1,)).then, None)
    raised(TypeError, futures.Future().add_done_callback, None)


def test_future_set_result_twice():
    future = futures.Future()
    future.set_result(1)
    assert "completed once" in str(raised(RuntimeError, future.set_result, 2))
    raised(TypeError, futures.Future().set_exception, "text")


# ---------------------------------------------------------------------------- references


def test_builtin_remote_ret():
    reference = rpc.remote(NAME, mg.add, (mg.ones(2), 1))
    assert reference.to_here().tolist() == [2, 2]
    assert not reference.is_owner()
    assert reference.owner_name() == NAME


def test_self_remote_rref_as_rpc_arg():
    reference = rpc.remote(RANK, add, (mg.ones(2),))
    assert reference.is_owner()
    assert reference.local_value().tolist() == [2, 2]
    assert rpc.rpc_sync(NAME, from_reference, (reference, 3)).tolist() == [6, 6]


def test_remote_throw():
    reference = rpc.remote(NAME, fail, (9,))
    assert raised(Failure, reference.to_here).number == 9


def test_local_value_not_on_owner():
    error = raised(RuntimeError, rpc.remote(NAME, add, (1,)).local_value)
    assert f"Call it on owner {rpc.get_worker_info(NAME)}" in str(error)


def test_rpc_return_rref():
    reference = rpc.rpc_sync(NAME, new_reference, (mg.ones(3),))
    assert reference.owner().id == NEXT
    assert reference.to_here().tolist() == [1, 1, 1]


def test_nested_rref():
    inner = rpc.remote(NAME, rpc.remote, (AFTER, add, (mg.zeros(1),)))
    assert inner.to_here().to_here().item() == 1


def test_py_rref_args():
    a, b = rpc.remote(NAME, add, (mg.ones(2),)), RRef(mg.ones(2))
    assert rpc.rpc_sync(AFTER, from_reference, (a, 2)).tolist() == [4, 4]
    assert rpc.rpc_sync(AFTER, from_reference, (b, 2)).tolist() == [2, 2]
    assert rpc.rpc_sync(NAME, owned, (a,))[0]
    assert rpc.rpc_sync(AFTER, owned, (a,)) == (False, None)
    assert rpc.rpc_sync(AFTER, passed_through, (b,)).local_value() is b.local_value()


def test_rref_forward_chain():
    reference = rpc.remote(NAME, add, (mg.ones(2),))
    assert rpc.rpc_sync(NAME, forwarded, (reference, 12)).tolist() == [2, 2]


def test_multi_py_udf_remote():
    references = [rpc.remote(NAME, add, (k,)) for k in range(30)]
    assert [reference.to_here() for reference in references] == list(range(1, 31))


def test_rref_py_pickle_not_supported():
    error = raised(RuntimeError, pickle.dumps, RRef(3))
    assert "Can not pickle rref in python pickler" in str(error)


def test_rref_str():
    assert str(RRef(3)).startswith("OwnerRRef(RRefId = ")
    assert str(rpc.remote(NAME, add, (3,))).startswith("UserRRef(RRefId = ")


def test_user_rrefs_confirmed():
    reference = rpc.remote(NAME, add, (3,))
    reference.to_here()
    assert wait_until(reference.confirmed_by_owner)
    assert RRef(3).confirmed_by_owner()


def test_rref_proxy_class():
    reference = rpc.remote(NAME, Counter, (mg.zeros(2),))
    assert reference.rpc_sync().add(1).tolist() == [1, 1]
    assert reference.rpc_async().add(2, times=2).wait().tolist() == [5, 5]
    assert reference.remote().add(mg.ones(2)).to_here().tolist() == [6, 6]
    assert reference.remote().itself().rpc_sync().add(0).tolist() == [6, 6]
    raised(AttributeError, reference.rpc_sync().nothing)


def test_rref_leak():
    """In the end nobody owns a value (the others may still hold some of theirs)."""
    gc.collect()
    assert wait_until(lambda: not service().references.values)


CASES = [function for name, function in list(globals().items()) if name.startswith("test_")]


def main():
    rpc.init_rpc(f"worker{RANK}")
    run(CASES)
    rpc.shutdown()


if __name__ == "__main__":
    main()
