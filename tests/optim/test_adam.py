"""Adam and AdamW: the numbers of ``torch.optim``, in place, and their state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.optim import Adam, AdamW
from tests.torch_outcomes import Of

OPTIONS = [
    {},
    {"betas": (0.5, 0.0), "eps": 1e-3},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "maximize": True},
    {"amsgrad": True},
    {"amsgrad": True, "maximize": True, "weight_decay": 0.0},
]


def leaf(values) -> mg.Tensor:
    return mg.tensor(values, requires_grad=True)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("options", OPTIONS)
def test_steps_are_pytorchs(kind: type[Adam], options: dict, of_torch: Of) -> None:
    def trained(lib: Any) -> list[np.ndarray]:
        generator = np.random.default_rng(0)
        values = [generator.standard_normal(shape) for shape in ((3, 4), (7,), ())]
        parameters = [lib.tensor(np.asarray(value), requires_grad=True) for value in values]
        optimizer = getattr(lib.optim, kind.__name__)(parameters, lr=0.1, **options)
        for scale in (1.0, 10.0, 0.1, 1.0):  # with amsgrad, the largest square is not the last one
            for parameter, value in zip(parameters, values, strict=True):
                grad = scale * generator.standard_normal(value.shape)
                parameter.grad = lib.tensor(np.asarray(grad))
            optimizer.step()
        return [parameter.detach().numpy() for parameter in parameters]

    ours = trained(mg)
    for oracle, theirs in of_torch(trained):
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-12, atol=1e-14, err_msg=oracle)


def test_the_first_step_is_as_long_as_the_learning_rate() -> None:
    """Whatever the gradient: both means are corrected for having begun at zero."""
    weight = leaf([1.0, 2.0, 3.0])
    weight.grad = mg.tensor([1e-3, -5.0, 0.0])
    Adam([weight], lr=0.25, eps=1e-30).step()
    np.testing.assert_allclose(weight.detach().numpy(), [0.75, 2.25, 3.0], rtol=1e-6)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_writes_in_place_and_leaves_the_gradient(kind: type[Adam], options: dict) -> None:
    weight = leaf(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
    optimizer = kind([weight], lr=0.1, **options)
    memory = weight.data_ptr()
    for _ in range(3):
        weight.grad = mg.full((2, 3), 2.0)
        version = weight._version
        optimizer.step()
        assert (weight.data_ptr(), weight.dtype) == (memory, mg.float32)
        assert weight._version == version + 1
        assert np.all(weight.grad.numpy() == 2.0)


def test_scratch_memory_is_shared_by_parameters_of_all_sizes() -> None:
    small, large = leaf(np.ones(2)), leaf(np.ones((5, 4)))
    optimizer = Adam([small, large], lr=0.1, weight_decay=0.1, amsgrad=True, maximize=True)
    for _ in range(3):
        small.grad, large.grad = mg.ones(2, dtype=mg.float64), mg.ones(5, 4, dtype=mg.float64)
        optimizer.step()
    assert np.unique([*small.detach().numpy(), *large.detach().numpy().ravel()]).size == 1


def test_amsgrad_may_begin_and_end_on_the_way() -> None:
    weight = leaf([1.0])
    optimizer = Adam([weight], lr=0.1)
    for amsgrad in (False, True, False):
        optimizer.param_groups[0]["amsgrad"] = amsgrad
        weight.grad = mg.ones(1)
        optimizer.step()
    assert weight.item() == pytest.approx(0.7, abs=1e-5)


def test_state_continues_in_another_optimizer() -> None:
    first, second = leaf([1.0, -2.0]), leaf([0.0, 0.0])
    running, resumed = AdamW([first], lr=0.1), AdamW([second], lr=9.0)
    for _ in range(3):
        first.grad = mg.tensor([0.5, 3.0])
        running.step()
    with mg.no_grad():
        second.copy_(first)
    resumed.load_state_dict(copy.deepcopy(running.state_dict()))
    assert resumed.state_dict()["state"][0]["step"] == 3
    for optimizer, weight in ((running, first), (resumed, second)):
        weight.grad = mg.tensor([-1.0, 0.25])
        optimizer.step()
    assert second.tolist() == first.tolist()


def test_it_trains_with_backward_in_workers() -> None:
    model = mg.nn.Linear(3, 1)
    x = mg.tensor(np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32))
    target = x.sum(1, keepdim=True) * 0.5 + 1.0
    optimizer = Adam(model.parameters(), lr=0.1)
    with mg.Engine(mode="process", cpu_workers=1):
        for _ in range(100):
            optimizer.zero_grad()
            loss = ((model(x) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
    assert loss.item() < 1e-2


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Adam([leaf([1.0])], lr=-1.0), ValueError, "Invalid learning rate: -1.0"),
        (lambda: Adam([leaf([1.0])], eps=-1.0), ValueError, "Invalid epsilon value: -1.0"),
        (lambda: Adam([leaf([1.0])], betas=(1.0, 0.9)), ValueError, "beta parameter at index 0"),
        (lambda: Adam([leaf([1.0])], betas=(0.9, -0.1)), ValueError, "beta parameter at index 1"),
        (lambda: AdamW([leaf([1.0])], weight_decay=-1), ValueError, "Invalid weight_decay value"),
    ],
)
def test_misuse_is_named(make, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_parameters_may_have_names() -> None:
    weight, bias = leaf([1.0]), leaf([2.0])
    optimizer = Adam([("weight", weight), ("bias", bias)])
    assert optimizer.param_groups[0]["params"] == [weight, bias]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="Some param names are missing"):
        Adam([("weight", weight), bias])
    with pytest.raises(ValueError, match="groups should be with/without names"):
        Adam([{"params": [("weight", weight)]}, {"params": [bias]}])
    with pytest.raises(ValueError, match="1-element"):
        Adam([weight], lr=mg.tensor([0.1, 0.2]))
