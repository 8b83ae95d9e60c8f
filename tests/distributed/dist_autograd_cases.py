"""What backwards over hosts have to do beyond PyTorch's tests; every rank runs each case.

``mpgrad run --nproc-per-node 3 dist_autograd_cases.py`` prints the name of each that went well.
"""

from __future__ import annotations

import os
import signal
import threading

import mpgrad as mg
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad import nn
from mpgrad.distributed.carrier import zeromq_carrier
from mpgrad.distributed.rpc import RRef
from tests.distributed.cases_of_ranks import run
from tests.leftovers import wait_until

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NEXT, AFTER = (RANK + 1) % RANKS, (RANK + 2) % RANKS

#: By the caller's rank: whether rules of this process raise, and its leaf.
raising: dict[int, bool] = {}
weights = {rank: mg.full((3,), 2.0 + RANK, requires_grad=True) for rank in range(RANKS)}


class Fault(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


def square(x):
    return x * x


def weighted(caller, x):
    result = x * weights[caller]
    result.register_hook(lambda grad: maybe_raise(caller))
    return result


def twice_weighted(caller, x, to):
    return rpc.rpc_sync(to, weighted, (caller, x * 3)) * weights[caller]


def maybe_raise(caller):
    if raising.get(caller):
        raise Fault(caller, "the rule of a remote call")


def set_raising(caller, value):
    raising[caller] = value


def gradient_of_weights(context_id, caller):
    found = dist_autograd.get_gradients(context_id).get(weights[caller])
    return None if found is None else found.tolist()


def has_context(context_id):
    try:
        dist_autograd._retrieve_context(context_id)
    except RuntimeError:
        return False
    return True


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def interrupting(caller, x):
    result = x * 2
    result.register_hook(lambda grad: rpc.rpc_sync(caller, interrupt))
    return result


def pair(x):
    return x * 2, x * 3


def sum_of_module(module, x):
    assert all(isinstance(weight, nn.Parameter) for weight in module.parameters())
    return module(x).sum() + module.weight.sum()


def leaf():
    return mg.tensor([1.0, 2.0], requires_grad=True)


def dot(a, b):
    return (a.to_here() * b).sum()


def grad_of(reference):
    return reference.local_value().grad.tolist()


def raised(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")


# ---------------------------------------------------------------------------- gradients


def test_gradients_on_all_hosts_and_no_grad():
    x = mg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(NEXT, twice_weighted, (RANK, x, AFTER)).sum()
        for mode in ("smart", "fast"):
            dist_autograd.backward(context_id, [loss], retain_graph=True, mode=mode)
        a, b = 2.0 + NEXT, 2.0 + AFTER
        assert dist_autograd.get_gradients(context_id)[x].tolist() == [6 * a * b] * 3
        at_next = rpc.rpc_sync(NEXT, gradient_of_weights, (context_id, RANK))
        assert at_next == [2 * k * 3 * b for k in (1, 2, 3)]
        at_after = rpc.rpc_sync(AFTER, gradient_of_weights, (context_id, RANK))
        assert at_after == [2 * k * 3 * a for k in (1, 2, 3)]
        assert x.grad is None
    assert "Could not find autograd context" in str(
        raised(RuntimeError, dist_autograd.get_gradients, context_id)
    )
    for rank in (NEXT, AFTER):
        assert wait_until(lambda rank=rank: not rpc.rpc_sync(rank, has_context, (context_id,)))


def test_a_result_that_nobody_uses():
    x = mg.ones(3, requires_grad=True)
    with dist_autograd.context() as context_id:
        rpc.rpc_sync(NEXT, square, (x,))
        first, _ = rpc.rpc_sync(NEXT, pair, (x,))
        loss = (first * x).sum()
        error = raised(RuntimeError, dist_autograd.backward, context_id, [loss], True, mode="fast")
        assert "waits for the gradients of " in str(error)
        assert "a call of square" in str(error)
        assert dist_autograd.get_gradients(context_id) == {}
        dist_autograd.backward(context_id, [loss])
        assert dist_autograd.get_gradients(context_id)[x].tolist() == [4.0] * 3


def test_steps_like_earlier_ones_and_one_that_is_not():
    x = mg.tensor([1.0, 2.0], requires_grad=True)
    for uses_both in (False, False, False, True, False):
        with dist_autograd.context() as context_id:
            first, second = rpc.rpc_sync(NEXT, pair, (x,))
            third, fourth = rpc.rpc_sync(NEXT, pair, (first,))
            squared = rpc.rpc_sync(AFTER, square, (second,))
            used = third + squared if uses_both else fourth
            dist_autograd.backward(context_id, [used.sum()])
            expected = [4.0 + 18.0 * k for k in (1, 2)] if uses_both else [6.0, 6.0]
            assert dist_autograd.get_gradients(context_id)[x].tolist() == expected


def test_seeds_and_inputs():
    x, y = mg.ones(3, requires_grad=True), mg.ones(3, requires_grad=True)
    with dist_autograd.context() as context_id:
        inner = x * y
        result = rpc.rpc_sync(NEXT, weighted, (RANK, inner))
        seed = mg.tensor([1.0, 2.0, 3.0])
        dist_autograd.backward(context_id, [result], True, grad_tensors=[seed], inputs=[x, inner])
        found = dist_autograd.get_gradients(context_id)
        assert set(map(id, found)) == {id(x), id(inner)}
        assert found[x].tolist() == [(2.0 + NEXT) * k for k in (1, 2, 3)]
        assert rpc.rpc_sync(NEXT, gradient_of_weights, (context_id, RANK)) is None


def test_parameters_of_a_module_stay_its_leaves():
    module = nn.Linear(3, 1, bias=False)
    x = mg.ones(1, 3, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(NEXT, sum_of_module, (module, x))
        dist_autograd.backward(context_id, [loss])
        found = dist_autograd.get_gradients(context_id)
        assert list(map(id, found)) == [id(x)]
        assert found[x].tolist() == module.weight.tolist()


def test_a_parameter_takes_its_history_along():
    weight = nn.Parameter(mg.ones(3))
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync(NEXT, square, (weight,)).sum()])
        assert dist_autograd.get_gradients(context_id)[weight].tolist() == [2.0] * 3


def test_hooks_and_retained_gradients():
    x, order = mg.ones(3, requires_grad=True), []
    x.register_hook(lambda grad: order.append("x"))
    with dist_autograd.context() as context_id:
        y = x * 2
        y.retain_grad()
        z = rpc.rpc_sync(NEXT, square, (y,))
        z.register_hook(lambda grad: order.append("z") or grad * 10)
        dist_autograd.backward(context_id, [z.sum()])
        assert order == ["z", "x"]
        assert y.grad.tolist() == [40.0] * 3
        assert dist_autograd.get_gradients(context_id)[x].tolist() == [80.0] * 3


def test_many_contexts_at_once():
    found = []

    def work(factor):
        x = mg.full((3,), float(factor), requires_grad=True)
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(factor % RANKS, twice_weighted, (RANK, x, NEXT)).sum()
            dist_autograd.backward(context_id, [loss])
            found.append((factor, dist_autograd.get_gradients(context_id)[x].tolist()))

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [(k, [3.0 * (2 + k % RANKS) * (2 + NEXT)] * 3) for k in range(12)]
    assert sorted(found) == expected


# ---------------------------------------------------------------------------- references


def test_roots_that_are_references():
    x = mg.ones(3, requires_grad=True)
    with dist_autograd.context() as context_id:
        there = rpc.remote(NEXT, square, (x,))
        loss = rpc.remote(AFTER, dot, (there, x))
        loss.backward(context_id, retain_graph=True)
        dist_autograd.backward(context_id, [loss])
        assert dist_autograd.get_gradients(context_id)[x].tolist() == [6.0] * 3


def test_a_reference_without_context():
    there = rpc.remote(NEXT, leaf)
    loss = rpc.remote(NEXT, dot, (there, mg.ones(2)))
    loss.backward()
    assert rpc.rpc_sync(NEXT, grad_of, (there,)) == [1.0, 1.0]
    error = raised(RuntimeError, RRef(3).backward)
    assert "RRef should contain a tensor for .backward()" in str(error)


# ---------------------------------------------------------------------------- errors


def test_a_rule_that_raises():
    x = mg.ones(3, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(NEXT, twice_weighted, (RANK, x, AFTER)).sum()
        rpc.rpc_sync(AFTER, set_raising, (RANK, True))
        error = raised(RuntimeError, dist_autograd.backward, context_id, [loss], True)
        assert str(error) == f"Error on Node {AFTER}: the rule of a remote call"
        assert (type(error.__cause__).__name__, error.__cause__.number) == ("Fault", RANK)
        rpc.rpc_sync(AFTER, set_raising, (RANK, False))
        for rank in (NEXT, AFTER):
            assert rpc.rpc_sync(rank, gradient_of_weights, (context_id, RANK)) is None
        assert dist_autograd.get_gradients(context_id) == {}
        dist_autograd.backward(context_id, [loss])
        assert len(dist_autograd.get_gradients(context_id)) == 1


def test_ctrl_c():
    x = mg.ones(3, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(NEXT, interrupting, (RANK, x)).sum()
        try:
            dist_autograd.backward(context_id, [loss], True)
            wait_until(lambda: False)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("no KeyboardInterrupt")


def test_bad_arguments():
    x = mg.ones(1, requires_grad=True)
    with dist_autograd.context() as context_id:
        error = raised(RuntimeError, dist_autograd.backward, context_id, [x * 2], create_graph=True)
        assert "create_graph=True" in str(error)
        raised(ValueError, dist_autograd.backward, context_id, [x * 2], mode="slow")
        raised(TypeError, dist_autograd.backward, context_id, [3.0])
        raised(TypeError, dist_autograd.backward, context_id, [x * 2], inputs=[RRef(x)])
        y = rpc.rpc_sync(NEXT, square, (x,))
        assert f"this graph goes on at rank {NEXT}" in str(raised(RuntimeError, y.backward))
    with dist_autograd.context() as another:
        error = raised(RuntimeError, dist_autograd.backward, another, [y * 1])
        assert f"a tensor that came in autograd context {context_id}" in str(error)
    error = raised(RuntimeError, dist_autograd._current_context)
    assert "Current thread doesn't have a valid autograd context" in str(error)


CASES = [function for name, function in list(globals().items()) if name.startswith("test_")]


def main():
    zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
    mg.set_engine(mg.Engine(os.environ.get("CASES_MODE", "local"), cpu_workers=1))
    rpc.init_rpc(f"worker{RANK}")
    run(CASES)
    rpc.shutdown()


if __name__ == "__main__":
    main()
