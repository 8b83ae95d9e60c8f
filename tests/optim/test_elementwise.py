"""The elementwise optimizers: the numbers of PyTorch's, in place, and their state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import optim
from tests.torch_outcomes import Of

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "alpha": 0.9}),
    ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.5, "centered": True, "maximize": True, "eps": 1e-3}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"maximize": True, "eps": 1e-2}),
    ("Adadelta", {}),
    ("Adadelta", {"rho": 0.5, "weight_decay": 0.1, "eps": 1e-3, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"betas": (0.5, 0.7), "weight_decay": 0.1, "eps": 1e-3, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"betas": (0.5, 0.7), "weight_decay": 0.1, "momentum_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {}),
    ("RAdam", {"betas": (0.5, 0.7), "weight_decay": 0.1, "eps": 1e-3}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lambd": 0.1, "alpha": 0.5, "t0": 4, "weight_decay": 0.1, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"etas": (0.3, 1.5), "step_sizes": (0.05, 0.2), "maximize": True}),
]
NAMES = sorted({name for name, _ in OPTIONS})
#: PyTorch rounds a number of these optimizers to single precision.
LOOSE = {"NAdam": 1e-6, "ASGD": 1e-6}
STEPS = 20


def train(lib: Any, parameters: list[Any], optimizer: Any, seed: int = 1) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = lib.tensor(np.asarray(generator.standard_normal(parameter.shape)))
        optimizer.step()


def parameters_of(lib: Any) -> list[Any]:
    generator = np.random.default_rng(0)
    values = [np.asarray(generator.standard_normal(shape)) for shape in ((3, 4), (7,), ())]
    return [lib.tensor(value, requires_grad=True) for value in values]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_steps_are_pytorchs(name: str, options: dict[str, Any], of_torch: Of) -> None:
    def trained(lib: Any) -> list[Any]:
        parameters = parameters_of(lib)
        optimizer = getattr(lib.optim, name)(parameters, lr=0.1, **options)
        train(lib, parameters, optimizer)
        kept = optimizer.state_dict()["state"]
        return [
            [parameter.detach().numpy() for parameter in parameters],
            [
                {key: np.asarray(item, np.float64) for key, item in kept[k].items()}
                for k in range(3)
            ],
        ]

    (ours, our_state), tolerance = trained(mg), LOOSE.get(name, 1e-11)
    for oracle, (theirs, their_state) in of_torch(trained):
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p, q, rtol=tolerance, atol=tolerance, err_msg=oracle)
        for kept, expected in zip(our_state, their_state, strict=True):
            assert sorted(kept) == sorted(expected), oracle
            for key, item in expected.items():
                np.testing.assert_allclose(
                    kept[key], item, rtol=tolerance, atol=tolerance, err_msg=f"{oracle}: {key}"
                )


@pytest.mark.parametrize("name", NAMES)
def test_options_have_pytorchs_defaults(name: str, of_torch: Of) -> None:
    def defaults(lib: Any) -> dict[str, Any]:
        group = getattr(lib.optim, name)(parameters_of(lib)).param_groups[0]
        return {key: str(group.get(key)) for key in sorted(ours)}

    ours = set(getattr(optim, name)(parameters_of(mg)).param_groups[0]) - {"params"}
    for oracle, theirs in of_torch(defaults):
        assert {key: float_or(text) for key, text in defaults(mg).items()} == {
            key: float_or(text) for key, text in theirs.items()
        }, oracle


def float_or(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_step_writes_in_place_and_leaves_the_gradient(name: str, options: dict[str, Any]) -> None:
    weight = mg.tensor(np.linspace(-1, 1, 6).reshape(2, 3), requires_grad=True)
    optimizer = getattr(optim, name)([weight], lr=0.1, **options)
    memory, before = weight.data_ptr(), weight.tolist()
    for _ in range(7):
        weight.grad = mg.full((2, 3), 2.0, dtype=mg.float64)
        version = weight._version
        optimizer.step()
        assert weight.data_ptr() == memory
        assert weight._version == version + 1
        assert np.all(weight.grad.numpy() == 2.0)
    assert np.all(np.sign(np.subtract(before, weight.tolist())) == (-1) ** ("maximize" in options))


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_single_precision_stays(name: str, options: dict[str, Any]) -> None:
    weight = mg.ones(3, requires_grad=True)
    optimizer = getattr(optim, name)([weight], lr=0.1, **options)
    for _ in range(7):
        weight.grad = mg.full((3,), 0.5)
        optimizer.step()
    kept = optimizer.state[weight].values()
    assert weight.dtype == mg.float32
    assert {item.dtype for item in kept if isinstance(item, mg.Tensor)} == {mg.float32}


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_state_continues_in_another_optimizer(name: str, options: dict[str, Any]) -> None:
    first = parameters_of(mg)
    running = getattr(optim, name)(first, lr=0.1, **options)
    train(mg, first, running)
    second = [parameter.detach().clone().requires_grad_() for parameter in first]
    resumed = getattr(optim, name)(second)
    resumed.load_state_dict(copy.deepcopy(running.state_dict()))
    train(mg, first, running, seed=2)
    train(mg, second, resumed, seed=2)
    assert [p.tolist() for p in second] == [p.tolist() for p in first]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        *((name, {"lr": -1.0}, "Invalid learning rate: -1.0") for name in NAMES),
        *((n, {"weight_decay": -1.0}, "Invalid weight_decay") for n in NAMES if n != "Rprop"),
        *((n, {"eps": -1.0}, "Invalid epsilon") for n in NAMES if n not in ("Rprop", "ASGD")),
        *(
            (n, {"betas": (0.5, 1.0)}, "beta parameter at index 1")
            for n in NAMES
            if "Adam" in n[:5]
        ),
        ("RMSprop", {"alpha": -1.0}, "Invalid alpha value"),
        ("RMSprop", {"momentum": -1.0}, "Invalid momentum value"),
        ("Adagrad", {"lr_decay": -1.0}, "Invalid lr_decay value"),
        ("Adagrad", {"initial_accumulator_value": -1.0}, "Invalid initial_accumulator_value"),
        ("Adadelta", {"rho": 2.0}, "Invalid rho value: 2.0"),
        ("NAdam", {"momentum_decay": -1.0}, "Invalid momentum_decay value"),
        ("Rprop", {"etas": (1.5, 2.0)}, "Invalid eta values: 1.5, 2.0"),
    ],
)
def test_misuse_is_named(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        getattr(optim, name)([mg.ones(1, requires_grad=True)], **options)


def test_adagrads_state_is_there_before_the_first_step() -> None:
    optimizer = optim.Adagrad([mg.ones(2, requires_grad=True)], initial_accumulator_value=0.5)
    assert optimizer.state_dict()["state"][0]["sum"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", [*NAMES, "Adam", "AdamW"])
def test_complex_parameters_move_like_their_parts(name: str) -> None:
    whole = mg.tensor([1.0 + 2.0j, -1.0j], requires_grad=True)
    parts = mg.tensor([[1.0, 2.0], [0.0, -1.0]], requires_grad=True)
    for leaf, see in ((whole, mg.view_as_real), (parts, lambda x: x)):
        optimizer = getattr(optim, name)([leaf])
        for _ in range(3):
            optimizer.zero_grad()
            ((see(leaf) - 3.0) ** 2).sum().backward()
            optimizer.step()
        kept = next(iter(optimizer.state.values()))
        assert {x.dtype for x in kept.values() if isinstance(x, mg.Tensor)} == {leaf.dtype}
    assert mg.equal(mg.view_as_real(whole.detach()), parts.detach())
