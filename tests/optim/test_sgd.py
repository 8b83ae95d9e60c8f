"""SGD: the numbers of ``torch.optim.SGD``, in place, and its state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.optim import SGD
from tests.torch_outcomes import Of

OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.8, "weight_decay": 0.05, "nesterov": True},
    {"momentum": 0.8, "dampening": 0.5, "weight_decay": 0.05, "maximize": True},
    {"weight_decay": 0.1, "maximize": True},
]


def leaf(values) -> mg.Tensor:
    return mg.tensor(values, requires_grad=True)


@pytest.mark.parametrize("options", OPTIONS)
def test_steps_are_pytorchs(options: dict, of_torch: Of) -> None:
    def trained(lib: Any) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        values = [generator.standard_normal(shape) for shape in ((3, 4), (7,), ())]
        parameters = [lib.tensor(np.asarray(value), requires_grad=True) for value in values]
        optimizer = lib.optim.SGD(parameters, lr=0.1, **options)
        for _ in range(4):
            for parameter, value in zip(parameters, values, strict=True):
                parameter.grad = lib.tensor(np.asarray(generator.standard_normal(value.shape)))
            optimizer.step()
        return [parameter.detach().numpy() for parameter in parameters]

    ours = trained(mg)
    for oracle, theirs in of_torch(trained):
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-12, atol=1e-14, err_msg=oracle)


def test_a_step_by_hand() -> None:
    weight = leaf([1.0, 2.0])
    optimizer = SGD([weight], lr=0.5, momentum=0.5)
    for expected in ([0.5, 1.5], [-0.25, 0.75]):
        weight.grad = mg.ones(2)
        optimizer.step()
        assert weight.tolist() == expected
    assert weight.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_writes_in_place_and_leaves_the_gradient(options: dict) -> None:
    weight = leaf(np.linspace(-1, 1, 6).reshape(2, 3))
    optimizer = SGD([weight], lr=0.1, **options)
    memory = weight.data_ptr()
    for _ in range(3):
        weight.grad = mg.full((2, 3), 2.0, dtype=mg.float64)
        version = weight._version
        optimizer.step()
        assert weight.data_ptr() == memory
        assert weight._version == version + 1
        assert np.all(weight.grad.numpy() == 2.0)


def test_a_step_between_forward_and_backward_is_noticed() -> None:
    weight = leaf([3.0])
    out = (weight * weight).sum()
    weight.grad = mg.ones(1)
    SGD([weight], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_parameters_without_gradient_stay() -> None:
    used, unused = leaf([1.0]), leaf([1.0])
    used.grad = mg.ones(1)
    SGD([used, unused], lr=0.5, weight_decay=0.1).step()
    assert unused.tolist() == [1.0]
    assert used.tolist() != [1.0]


def test_scratch_memory_is_shared_by_parameters_of_all_sizes() -> None:
    small, large = leaf(np.ones(2)), leaf(np.ones((5, 4)))
    optimizer = SGD([small, large], lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)
    for _ in range(2):
        small.grad, large.grad = mg.ones(2, dtype=mg.float64), mg.ones(5, 4, dtype=mg.float64)
        optimizer.step()
    assert np.unique([*small.detach().numpy(), *large.detach().numpy().ravel()]).size == 1


def test_groups_have_options_of_their_own() -> None:
    fast, slow = leaf([1.0]), leaf([1.0])
    optimizer = SGD([{"params": [fast], "lr": 0.5}, {"params": slow}], lr=0.25)
    fast.grad, slow.grad = mg.ones(1), mg.ones(1)
    optimizer.step()
    assert (fast.item(), slow.item()) == (0.5, 0.75)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert (fast.item(), slow.item()) == (0.5, 0.5)


def test_zero_grad() -> None:
    weight = leaf([1.0])
    weight.grad = mg.ones(1)
    optimizer = SGD([weight], lr=0.1)
    optimizer.zero_grad(set_to_none=False)
    assert weight.grad.tolist() == [0.0]
    optimizer.zero_grad()
    assert weight.grad is None


def test_closure_is_recorded_even_under_no_grad() -> None:
    weight = leaf([2.0])
    optimizer = SGD([weight], lr=0.25)

    def closure() -> mg.Tensor:
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    with mg.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == 4.0
    assert weight.tolist() == [1.0]


def test_state_continues_in_another_optimizer() -> None:
    first, second = leaf([1.0]), leaf([1.0])
    running = SGD([first], lr=0.1, momentum=0.9)
    first.grad = mg.ones(1)
    running.step()
    resumed = SGD([second], lr=9.0)
    with mg.no_grad():
        second.copy_(first)
    resumed.load_state_dict(copy.deepcopy(running.state_dict()))
    assert running.state_dict()["param_groups"][0]["params"] == [0]
    second.grad = mg.ones(1)
    running.step()
    resumed.step()
    assert second.tolist() == first.tolist()
    # The loaded state is a copy: one optimizer's steps do not move the other's buffer.
    buffers = [o.state_dict()["state"][0]["momentum_buffer"] for o in (running, resumed)]
    assert buffers[0].data_ptr() != buffers[1].data_ptr()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: SGD([], lr=0.1), ValueError, "empty parameter list"),
        (lambda: SGD(leaf([1.0]), lr=0.1), TypeError, "iterable of Tensors or dicts"),
        (lambda: SGD([1.0], lr=0.1), TypeError, "can only optimize Tensors, but one.*float"),
        (lambda: SGD([leaf([1.0]) * 2], lr=0.1), ValueError, "can't optimize a non-leaf Tensor"),
        (lambda: SGD([leaf([1.0])], lr=-1.0), ValueError, "Invalid learning rate: -1.0"),
        (lambda: SGD([leaf([1.0])], momentum=-1), ValueError, "Invalid momentum value"),
        (lambda: SGD([leaf([1.0])], nesterov=True), ValueError, "Nesterov momentum requires"),
    ],
)
def test_misuse_is_named(make, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_a_parameter_belongs_to_one_group() -> None:
    weight = leaf([1.0])
    with pytest.raises(ValueError, match="more than one parameter group"):
        SGD([{"params": [weight]}, {"params": [weight]}], lr=0.1)


def test_a_state_of_another_structure_is_refused() -> None:
    state = SGD([leaf([1.0]), leaf([1.0])], lr=0.1).state_dict()
    with pytest.raises(ValueError, match="parameter groups of other sizes"):
        SGD([leaf([1.0])], lr=0.1).load_state_dict(state)


def test_pytorchs_choice_of_an_implementation_changes_nothing() -> None:
    weights = [leaf([1.0, 2.0]) for _ in range(2)]
    for weight, choice in zip(weights, ({}, {"foreach": True, "fused": None}), strict=True):
        weight.grad = mg.tensor([0.5, 0.5])
        for make in (SGD, mg.optim.AdamW, mg.optim.RMSprop):
            make([weight], lr=0.1, **choice).step()
    assert weights[0].tolist() == weights[1].tolist() != [1.0, 2.0]
    with pytest.raises(TypeError, match=r"^Adam.__init__\(\) got an unexpected .* 'foreahc'"):
        mg.optim.Adam(weights, foreahc=True)
    with pytest.raises(NotImplementedError, match="differentiable=True"):
        SGD(weights, differentiable=True)


def test_the_state_of_a_parameter_begins_empty() -> None:
    class Averages(mg.optim.Optimizer):
        @mg.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                if len(state) == 0:
                    state["mean"] = mg.zeros_like(parameter, memory_format=mg.preserve_format)
                parameter.sub_(state["mean"].lerp_(parameter.grad, 0.5))

    weight = leaf([2.0])
    optimizer = Averages([weight], {})
    for _ in range(2):
        weight.grad = mg.tensor([1.0])
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert weight.tolist() == [0.75]
    assert optimizer.state[leaf([1.0])] == {}
