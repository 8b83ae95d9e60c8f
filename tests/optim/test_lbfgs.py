"""LBFGS: the path of ``torch.optim.LBFGS``, its evaluations and its state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.optim import LBFGS
from tests.torch_outcomes import Of

OPTIONS = [
    {"lr": 0.1, "max_iter": 4},
    {"lr": 0.5, "max_iter": 3, "history_size": 2},
    {"max_iter": 4, "max_eval": 3, "lr": 0.1},
    {"line_search_fn": "strong_wolfe", "max_iter": 3},
    {"line_search_fn": "strong_wolfe", "max_iter": 5, "lr": 3.0, "history_size": 3},
    {"line_search_fn": "strong_wolfe", "max_iter": 4, "max_eval": 6},
    {"line_search_fn": "strong_wolfe", "max_iter": 4, "lr": 50.0},
    {"line_search_fn": "strong_wolfe", "max_iter": 4, "lr": 0.01},
    {"line_search_fn": "strong_wolfe", "tolerance_grad": 1e-2},
    {"line_search_fn": "strong_wolfe", "tolerance_change": 1e-2},
]
STEPS = 4


def problem(lib: Any) -> tuple[list[Any], Callable[[Any], Callable[[], Any]]]:
    """Rosenbrock's valley in two parameters, with a third that has no gradient."""
    start = [np.array([-1.2, 0.5, 0.3]), np.array([[1.0, 0.7]])]
    parameters = [lib.tensor(values, requires_grad=True) for values in start]
    parameters.append(lib.tensor(np.ones(2), requires_grad=True))

    def closure_of(optimizer: Any) -> Callable[[], Any]:
        def closure() -> Any:
            optimizer.zero_grad()
            x = lib.cat([parameters[0], parameters[1].reshape(-1)])
            loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss.backward()
            return loss

        return closure

    return parameters, closure_of


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("options", OPTIONS)
def test_steps_are_pytorchs(options: dict[str, Any], of_torch: Of) -> None:
    def trained(lib: Any) -> list[Any]:
        parameters, closure_of = problem(lib)
        optimizer = lib.optim.LBFGS(parameters, **options)
        closure = closure_of(optimizer)
        losses = [float(optimizer.step(closure).detach()) for _ in range(STEPS)]
        (kept,) = optimizer.state_dict()["state"].values()
        memory = [kept[name] for name in ("func_evals", "n_iter")]
        memory += [float(kept[name]) for name in ("t", "H_diag", "prev_loss")]
        vectors = [kept["d"], kept["prev_flat_grad"], *kept["old_dirs"], *kept["old_stps"]]
        return [
            losses,
            [parameter.detach().numpy() for parameter in parameters],
            memory,
            [vector.numpy() for vector in vectors],
            [float(value) for value in kept["ro"]],
            sorted(kept),
        ]

    ours = trained(mg)
    for oracle, theirs in of_torch(trained):
        assert ours[5] == theirs[5], oracle
        assert ours[2][:2] == theirs[2][:2], oracle
        for part in range(5):
            assert len(ours[part]) == len(theirs[part]), oracle
            for p, q in zip(ours[part], theirs[part], strict=True):
                np.testing.assert_allclose(p, q, rtol=1e-6, atol=1e-9, err_msg=oracle)


@pytest.mark.parametrize("options", OPTIONS)
def test_state_continues_in_another_optimizer(options: dict[str, Any]) -> None:
    first, closure_of = problem(mg)
    running = LBFGS(first, **options)
    second, other_closure_of = problem(mg)
    resumed = LBFGS(second)
    for _ in range(2):
        running.step(closure_of(running))
    for p, q in zip(second, first, strict=True):
        p.data.copy_(q.detach())
    resumed.load_state_dict(copy.deepcopy(running.state_dict()))
    for _ in range(3):
        running.step(closure_of(running))
        resumed.step(other_closure_of(resumed))
    assert [p.tolist() for p in second] == [p.tolist() for p in first]


def test_a_valley_is_left_at_its_bottom() -> None:
    weight = mg.tensor([-1.2, 1.0], dtype=mg.float64, requires_grad=True)
    optimizer = LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> mg.Tensor:
        optimizer.zero_grad()
        loss = 100 * (weight[1] - weight[0] ** 2) ** 2 + (1 - weight[0]) ** 2
        loss.backward()
        return loss

    with mg.no_grad():
        optimizer.step(closure)
    assert weight.tolist() == pytest.approx([1.0, 1.0], abs=1e-4)
    evaluations = optimizer.state_dict()["state"][0]["func_evals"]
    optimizer.param_groups[0]["tolerance_grad"] = 1.0
    optimizer.step(closure)
    assert optimizer.state_dict()["state"][0]["func_evals"] == evaluations + 1


def test_gradients_may_be_filled_with_zeros_between_evaluations() -> None:
    ends = []
    for set_to_none in (True, False):
        weight = mg.tensor([-1.2, 1.0], dtype=mg.float64, requires_grad=True)
        optimizer = LBFGS([weight], lr=0.1, max_iter=5)

        def closure(weight=weight, optimizer=optimizer, set_to_none=set_to_none) -> mg.Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = (weight**4).sum() + weight[0] * weight[1]
            loss.backward()
            return loss

        optimizer.step(closure)
        ends.append(weight.tolist())
    assert ends[0] == ends[1]


def test_misuse_is_named() -> None:
    weight, other = mg.ones(1, requires_grad=True), mg.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        LBFGS([weight], lr=-1)
    with pytest.raises(ValueError, match="per-parameter options"):
        LBFGS([{"params": [weight]}, {"params": [other]}])
    with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
        LBFGS([weight], line_search_fn="x").step(lambda: weight.sum())
    with pytest.raises(TypeError, match="needs a closure"):
        LBFGS([weight]).step()


def test_complex_parameters_move_like_their_parts() -> None:
    whole = mg.tensor([1.0 + 2.0j, -1.0j], requires_grad=True)
    parts = mg.tensor([[1.0, 2.0], [0.0, -1.0]], requires_grad=True)
    for leaf, see in ((whole, mg.view_as_real), (parts, lambda x: x)):
        optimizer = LBFGS([leaf], lr=0.5, max_iter=3)

        def closure(leaf: Any = leaf, see: Any = see, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = ((see(leaf) - 3.0) ** 4).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert mg.equal(mg.view_as_real(whole.detach()), parts.detach())
