"""What DistributedDataParallel has to do besides plain training; every rank runs each case.

``mpgrad run --nproc-per-node 3 data_parallel_cases.py`` prints the name of each that went well.
Each rank also computes what one process would get that runs the parts of all ranks.
"""

from __future__ import annotations

import pickle
import warnings

import numpy as np

import mpgrad as mg
import mpgrad.distributed as dist
from mpgrad import nn
from mpgrad.distributed.algorithms.ddp_comm_hooks import default_hooks
from mpgrad.distributed.carrier import zeromq_carrier
from mpgrad.distributed.futures import Future, collect_all
from mpgrad.nn.parallel import DistributedDataParallel
from mpgrad.utils.checkpoint import checkpoint
from tests.distributed.cases_of_ranks import error_of, run

zeromq_carrier.SILENCE_MS_MAX = 120_000  # on a busy machine a process may starve for seconds
dist.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()
#: Bytes of a bucket, so few that each holds one or two gradients.
SMALL = 100 / 2**20


def new_model(seed=0):
    mg.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def batch(step, rank):
    numbers = np.random.default_rng(100 * step + rank)
    return mg.from_numpy(numbers.standard_normal((5, 4)).astype("f4"))


def gradients_alone(model, inputs, loss=lambda output: output.square().sum()):
    """The gradients of all ranks, rank by rank; zeros where the input is None."""
    parts = []
    for x in inputs:
        model.zero_grad()
        if x is not None:
            loss(model(x)).backward()
        parts.append(
            [mg.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        )
    return parts


def averaged_alone(parts, divisor=RANKS):
    return [dist.tree_sum(same) / divisor for same in zip(*parts, strict=True)]


def bits(tensors):
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def gradients(model):
    return [p.grad for p in model.parameters()]


def step_alone(model, averages):
    for parameter, average in zip(model.parameters(), averages, strict=True):
        parameter.grad = average
    mg.optim.SGD(model.parameters(), lr=0.1).step()


# ---------------------------------------------------------------------------- join


def joined(divides_by_all):
    """Rank k has 2 k inputs, so rank 0 has none."""
    alone, model = new_model(), DistributedDataParallel(new_model(RANK), bucket_cap_mb=SMALL)
    optimizer = mg.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2 * (RANKS - 1)):
        inputs = [batch(step, k) if step < 2 * k else None for k in range(RANKS)]
        active = sum(x is not None for x in inputs)
        parts = gradients_alone(alone, inputs)
        step_alone(alone, averaged_alone(parts, RANKS if divides_by_all else active))
    with model.join(divide_by_initial_world_size=divides_by_all):
        for step in range(2 * RANK):
            optimizer.zero_grad()
            model(batch(step, RANK)).square().sum().backward()
            optimizer.step()
    assert bits(model.module.parameters()) == bits(alone.parameters())
    everywhere = [None] * RANKS
    dist.all_gather_object(everywhere, bits(model.module.buffers()))
    assert everywhere == everywhere[:1] * RANKS


def test_ranks_without_inputs_take_part_with_zeros():
    joined(True)


def test_averages_over_ranks_with_inputs():
    joined(False)


def test_join_with_gradients_that_add_up():
    model = DistributedDataParallel(new_model(), forward_sync_buffers=False)
    with model.join():
        for _ in range(1 + RANK):
            with model.no_sync():
                model(batch(0, RANK)).sum().backward()
            model(batch(1, RANK)).sum().backward()
    with model.join(enable=False):
        model(batch(1, RANK)).sum().backward()


def test_all_ranks_raise_when_one_has_no_inputs():
    model = DistributedDataParallel(new_model())

    def train(steps):
        with model.join(throw_on_early_termination=True):
            for _ in range(steps):
                model(batch(0, RANK)).sum().backward()

    text = error_of(RuntimeError, lambda: train(2 if RANK else 1))
    assert ("at least one rank that exhausted" if RANK else "Rank 0 exhausted all") in text
    train(1)


# ---------------------------------------------------------------------------- hooks


def test_the_hook_of_a_plain_average_changes_no_bit():
    alone, model = new_model(), DistributedDataParallel(new_model(), bucket_cap_mb=SMALL)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    for step in range(3):
        averages = averaged_alone(gradients_alone(alone, [batch(step, k) for k in range(RANKS)]))
        model.zero_grad()
        model(batch(step, RANK)).square().sum().backward()
        assert bits(gradients(model)) == bits(averages)


def test_gradients_travel_as_float16():
    parts = gradients_alone(new_model(), [batch(0, k) for k in range(RANKS)])
    shares = [[gradient.half() / RANKS for gradient in part] for part in parts]
    expected = [average.float() for average in averaged_alone(shares, 1)]
    for hook in (
        default_hooks.fp16_compress_hook,
        default_hooks.fp16_compress_wrapper(default_hooks.fp16_compress_hook),
    ):
        model = DistributedDataParallel(new_model(), bucket_cap_mb=SMALL)
        model.register_comm_hook(None, hook)
        model(batch(0, RANK)).square().sum().backward()
        assert bits(gradients(model)) == bits(expected)


def test_a_hook_sees_the_buckets_in_their_order():
    seen = []

    def hook(state, bucket):
        assert state == "state"
        sizes = [p.numel() for p in bucket.parameters()]
        assert bucket.buffer().shape == (sum(sizes),)
        for gradient, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
            assert gradient.shape == parameter.shape
            assert bits([gradient]) == bits([parameter.grad])
        seen.append(
            (bucket.index(), bucket.is_last(), [list(p.shape) for p in bucket.parameters()])
        )
        future = Future()
        future.set_result(bucket.buffer() * 0 + bucket.index())
        return future

    model = DistributedDataParallel(new_model(), bucket_cap_mb=SMALL)
    model.register_comm_hook("state", hook)
    model(batch(0, RANK)).sum().backward()
    assert seen == [(0, False, [[3], [3, 6], [6]]), (1, True, [[6], [6], [6, 4]])], seen
    assert [p.grad.unique().tolist() for p in model.parameters()] == [[1.0]] * 3 + [[0.0]] * 3


def test_a_hook_may_begin_a_collective_when_another_ends():
    parts = gradients_alone(new_model(), [batch(0, k) for k in range(RANKS)])
    doubled = [average * RANKS * 2 for average in averaged_alone(parts, 1)]

    def hook(_, bucket):
        def again(done):
            [total] = done.value()
            return dist.all_reduce(total, async_op=True).get_future().wait()[0]

        first = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        both = collect_all([first.then(again), first])
        return both.then(lambda done: done.value()[0].value() * 2)

    model = DistributedDataParallel(new_model(), bucket_cap_mb=SMALL)
    model.register_comm_hook(None, hook)
    model(batch(0, RANK)).square().sum().backward()
    for gradient, expected in zip(gradients(model), doubled, strict=True):
        assert np.allclose(gradient.numpy(), expected.numpy(), rtol=1e-5)


def test_what_is_no_hook_is_refused():
    model = DistributedDataParallel(new_model())

    def register(hook):
        model.register_comm_hook(None, hook)
        model(batch(0, RANK)).sum().backward()

    assert "must be callable" in error_of(TypeError, lambda: register(1))
    gives_no_future = lambda state, bucket: bucket.buffer()  # noqa: E731
    assert "has to return a Future" in error_of(TypeError, lambda: register(gives_no_future))
    assert "only be called once" in error_of(RuntimeError, lambda: register(gives_no_future))


# ---------------------------------------------------------------------------- buckets


class Backwards(nn.Module):
    """Its parameters are used in the order opposite to the one in which they stand."""

    def __init__(self):
        super().__init__()
        mg.manual_seed(0)
        self.last, self.first, self.unused = nn.Linear(3, 2), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x, uses=False):
        x = self.last(self.first(x))
        return self.unused(x) if uses else x


def test_buckets_are_made_anew_in_the_order_in_which_gradients_come():
    alone, module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), Backwards()
    del module.unused
    alone[0].load_state_dict(module.first.state_dict())
    alone[1].load_state_dict(module.last.state_dict())
    model = DistributedDataParallel(module, bucket_cap_mb=40 / 2**20)
    assert model.reducer._buckets == [[3, 2], [1, 0]]
    for step in range(3):
        averages = averaged_alone(gradients_alone(alone, [batch(step, k) for k in range(RANKS)]))
        model.zero_grad()
        model(batch(step, RANK)).square().sum().backward()
        assert bits(gradients(model)) == bits(averages[2:] + averages[:2])
    after = model.reducer._buckets
    assert set(after[0][:2]) == {0, 1}, after
    everywhere = [None] * RANKS
    dist.all_gather_object(everywhere, after)
    assert everywhere == [after] * RANKS


# ---------------------------------------------------------------------------- what is not used


def test_what_was_used_before_the_last_backward_is_averaged():
    model = DistributedDataParallel(Backwards(), find_unused_parameters=True)
    with model.no_sync():
        model(batch(0, RANK) * (RANK + 1), uses=True).sum().backward()
    model(batch(1, RANK), uses=False).sum().backward()
    everywhere = [None] * RANKS
    dist.all_gather_object(everywhere, bits([model.module.unused.weight.grad]))
    assert everywhere == everywhere[:1] * RANKS


class Twice(Backwards):
    """Each parameter gets a gradient from two inner backwards."""

    def forward(self, x, uses=False):
        for _ in range(2):
            x = checkpoint(self.first, x, use_reentrant=True)
            x = nn.functional.pad(x, (0, 1))
        x = super().forward(x, uses)
        return checkpoint(super().forward, nn.functional.pad(x, (0, 2)), uses, use_reentrant=True)


def test_a_static_graph_may_use_parameters_twice_or_never():
    alone, model = Twice(), DistributedDataParallel(Twice(), static_graph=True, bucket_cap_mb=SMALL)
    for parameter in alone.parameters():  # gradients of inner and outer backwards add in one order
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    for step in range(3):
        inputs = [batch(step, k).requires_grad_() for k in range(RANKS)]
        averages = averaged_alone(gradients_alone(alone, inputs))
        model.zero_grad()
        model(inputs[RANK]).square().sum().backward()
        assert model.module.unused.weight.grad is None
        assert bits(gradients(model)[:4]) == bits(averages[:4])
    model.zero_grad()
    loss = model(inputs[RANK], uses=True).square().sum()
    text = error_of(RuntimeError, loss.backward)
    assert "Your training graph has changed in this iteration: unused." in text


class TwoOutputs(nn.Module):
    """Its first output may have no part in the loss."""

    def __init__(self):
        super().__init__()
        mg.manual_seed(1)
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.first(x), self.second(x)


def test_an_output_may_have_no_part_in_the_loss():
    model = DistributedDataParallel(TwoOutputs(), find_unused_parameters=True, bucket_cap_mb=SMALL)
    alone = TwoOutputs()
    for step in range(3):
        inputs = [batch(step, k) for k in range(RANKS)]
        loss = lambda outputs: outputs[1].square().sum()  # noqa: E731
        averages = averaged_alone(gradients_alone(alone, inputs, loss))
        model.zero_grad()
        loss(model(inputs[RANK])).backward()
        assert model.module.first.weight.grad is None
        assert bits(gradients(model)[2:]) == bits(averages[2:])


class Undefined(mg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_an_undefined_gradient_stays_none():
    model = DistributedDataParallel(TwoOutputs(), find_unused_parameters=True)
    first, second = model(batch(0, RANK))
    (Undefined.apply(first).sum() + second.sum()).backward()
    assert model.module.first.weight.grad is None
    assert model.module.second.weight.grad is not None


def test_what_a_backward_has_left_out_is_not_averaged_later():
    model = DistributedDataParallel(TwoOutputs(), find_unused_parameters=True)
    first, second = model(batch(0, RANK))
    second.sum().backward()
    text = error_of(RuntimeError, first.sum().backward)
    assert "Expected to mark a variable ready only once: first." in text
    model.zero_grad()
    sum(output.sum() for output in model(batch(1, RANK))).backward()
    assert model.module.first.weight.grad is not None


def test_a_model_is_saved_and_goes_on_averaging():
    model = DistributedDataParallel(new_model())
    again = pickle.loads(pickle.dumps(model))
    x = batch(0, RANK)
    for one in (model, again):
        one(x).square().sum().backward()
    assert bits(gradients(model)) == bits(gradients(again))
    in_group = DistributedDataParallel(new_model(), process_group=dist.new_group())
    assert "default process group" in error_of(RuntimeError, lambda: pickle.dumps(in_group))


def test_buffers_of_a_rank_may_stay_its_own():
    def own_mean():
        model = new_model()
        model[1].running_mean.fill_(float(RANK))
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = DistributedDataParallel(own_mean(), broadcast_buffers=False)
    assert model.module[1].running_mean.tolist() == [float(RANK)] * 6
    model = DistributedDataParallel(own_mean(), forward_sync_buffers=False)
    assert model.module[1].running_mean.tolist() == [0.0] * 6
    with model.join():
        for _ in range(1 + RANK):
            model(batch(0, RANK)).sum().backward()
    means = [mg.zeros(6) for _ in range(RANKS)]
    dist.all_gather(means, model.module[1].running_mean)
    assert len(set(bits(means))) == RANKS


def test_parameters_that_are_left_alone():
    module = new_model(RANK)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight"])
    kept = module[0].weight.detach().clone()
    model = DistributedDataParallel(module)
    assert mg.equal(module[0].weight, kept)
    model(batch(0, RANK)).square().sum().backward()
    grads = [mg.zeros_like(kept) for _ in range(RANKS)]
    dist.all_gather(grads, module[0].weight.grad)
    assert len(set(bits(grads))) == RANKS


def test_devices_that_do_not_fit_are_refused():
    for wrong in ({"device_ids": [0]}, {"output_device": 1}):
        text = error_of(
            ValueError, lambda wrong=wrong: DistributedDataParallel(new_model(), **wrong)
        )
        assert "device_ids and output_device arguments only work with" in text


if __name__ == "__main__":
    cases = [value for name, value in dict(globals()).items() if name.startswith("test_")]
    run(cases)
