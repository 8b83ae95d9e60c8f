"""DistributedDataParallel and RemoteModule in graphs that span hosts; every rank runs each case.

``mpgrad run --nproc-per-node 3 hybrid_cases.py PORT``: ranks 0 and 1 train, and are a world of
their own at that port; rank 2 serves. It prints the name of each case that went well.
"""

from __future__ import annotations

import os
import sys

import mpgrad as mg
import mpgrad.distributed as dist
import mpgrad.distributed.autograd as dist_autograd
import mpgrad.distributed.rpc as rpc
from mpgrad import nn
from mpgrad.distributed.carrier import zeromq_carrier
from mpgrad.distributed.nn import RemoteModule
from mpgrad.distributed.optim import DistributedOptimizer
from mpgrad.nn.parallel import DistributedDataParallel
from tests.distributed.cases_of_ranks import error_of, run

RANK = int(os.environ["RANK"])
TRAINS = RANK < 2


def net(seed: int) -> nn.Module:
    mg.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(step: int, rank: int = RANK) -> mg.Tensor:
    mg.manual_seed(100 * step + rank)
    return mg.randn(4, 6)


def bits(tensors) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def in_context(model, *steps: int) -> list[bytes]:
    with dist_autograd.context() as context_id:
        for step in steps:
            dist_autograd.backward(context_id, [model(batch(step)).square().sum()])
        found = dist_autograd.get_gradients(context_id)
        assert all(parameter.grad is None for parameter in model.parameters())
        return bits(found[parameter] for parameter in model.parameters())


def as_usual(model, *steps: int) -> list[bytes]:
    for step in steps:
        model(batch(step)).square().sum().backward()
    found = bits(parameter.grad for parameter in model.parameters())
    model.zero_grad()
    return found


def test_a_model_averages_in_a_context_as_it_does_otherwise():
    if TRAINS:
        model = DistributedDataParallel(net(1), bucket_cap_mb=1e-4)
        for step in range(3):
            assert in_context(model, step) == as_usual(model, step)


def test_what_a_context_held_before_is_part_of_the_average():
    if TRAINS:
        model = DistributedDataParallel(net(2))

        def with_two(run_steps):
            return run_steps(model, 5, 6)

        assert with_two(in_context) == with_two(as_usual)


def test_unsynchronised_passes_add_up():
    if not TRAINS:
        return
    model = DistributedDataParallel(net(3))
    with dist_autograd.context() as context_id:
        with model.no_sync():
            dist_autograd.backward(context_id, [model(batch(7)).sum()])
        own = dist_autograd.get_gradients(context_id)
        own = bits(own[parameter] for parameter in model.parameters())
        dist_autograd.backward(context_id, [model(batch(8)).sum()])
        found = dist_autograd.get_gradients(context_id)
        found = bits(found[parameter] for parameter in model.parameters())
    with model.no_sync():
        model(batch(7)).sum().backward()
    assert own == bits(parameter.grad for parameter in model.parameters())
    model(batch(8)).sum().backward()
    assert found == bits(parameter.grad for parameter in model.parameters())


def test_unused_parameters_and_static_graphs():
    if TRAINS:
        for options in ({"find_unused_parameters": True}, {"static_graph": True}):
            model = DistributedDataParallel(Half(), **options)
            for step in range(3):
                with dist_autograd.context() as context_id:
                    dist_autograd.backward(context_id, [model(batch(step)).sum()])
                    found = dist_autograd.get_gradients(context_id)
                model(batch(step)).sum().backward()
                assert {id(p) for p in found} == {id(model.module.used.weight)}
                [gradient] = found.values()
                assert bits([gradient]) == bits([model.module.used.weight.grad])
                model.zero_grad()


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        mg.manual_seed(4)
        self.used, self.unused = nn.Linear(6, 2, bias=False), nn.Linear(6, 2, bias=False)

    def forward(self, x):
        return self.used(x)


def test_a_model_before_a_remote_one_and_its_optimizer():
    """The gradients of two trainers, whose models are one, and of a module that both call."""
    if not TRAINS:
        return
    remote = RemoteModule("worker2/cpu", net, (5,))
    model = DistributedDataParallel(nn.Linear(6, 6))
    parameters = [*remote.remote_parameters(), *map(rpc.RRef, model.parameters())]
    optimizer = DistributedOptimizer(mg.optim.SGD, parameters, lr=0.1)
    for step in range(3):
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [remote(model(batch(step))).square().sum()])
            optimizer.step(context_id)
    mine = mg.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    others = [mg.empty_like(mine), mg.empty_like(mine)]
    dist.all_gather(others, mine)
    assert bits([others[0]]) == bits([others[1]])
    assert remote.get_module_rref().owner_name() == "worker2"


def test_the_remote_module_itself():
    if RANK != 0:
        return
    remote, here = RemoteModule("rank:2", net, (6,)), net(6)
    assert bits([remote(batch(1))]) == bits([here(batch(1))])
    assert bits([remote.forward_async(batch(2)).wait()]) == bits([here(batch(2))])
    assert [rref.to_here().shape for rref in remote.remote_parameters()] == [
        parameter.shape for parameter in here.parameters()
    ]
    assert repr(remote) == "RemoteModule(on=2, device='cpu')"
    remote.eval()
    assert not rpc.rpc_sync("worker2", is_training, (remote.module_rref,))
    assert bits([rpc.rpc_sync("worker1", called, (remote, batch(3)))]) == bits([here(batch(3))])
    assert "named_parameters`` not supported" in error_of(ValueError, remote.named_parameters)
    for wrong in ("", "a:b", "/cpu"):
        assert "expected the name" in error_of(ValueError, lambda w=wrong: RemoteModule(w, net))
    assert "returns an instance of <class nn.Mo" in error_of(
        ValueError, lambda: RemoteModule("worker2", dict)
    )


def is_training(module_rref):
    return module_rref.local_value().training


def called(remote, x):
    return remote(x)


def main() -> None:
    zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
    if TRAINS:
        where = f"tcp://127.0.0.1:{sys.argv[1]}"
        dist.init_process_group("gloo", where, rank=RANK, world_size=2)
    rpc.init_rpc(f"worker{RANK}")
    run([case for name, case in globals().items() if name.startswith("test_")])
    rpc.shutdown()
    if TRAINS:
        assert dist.get_world_size() == 2
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
