"""Hooks of optimizers, and what PyTorch's own tests of optimizers look at, beside PyTorch."""

from __future__ import annotations

import copy
import importlib
import warnings
from typing import Any

import pytest

import mpgrad as mg
import mpgrad.compat.torch as stand_in
from mpgrad.errors import PerformanceWarning
from tests.semantics.paired import compare, seen
from tests.torch_outcomes import Of

pytestmark = pytest.mark.torch


def of_parameter(lib: Any, **options: Any) -> tuple[Any, Any]:
    w = lib.nn.Parameter(lib.tensor([1.0, 2.0]))
    w.grad = lib.tensor([1.0, -1.0])
    return w, lib.optim.SGD([w], **({"lr": 0.5} | options))


def around_steps(lib: Any) -> Any:
    w, optimizer = of_parameter(lib)
    noted: list[Any] = []
    before = optimizer.register_step_pre_hook(
        lambda opt, args, kwargs: noted.append((opt is optimizer, len(args), sorted(kwargs)))
    )
    after = optimizer.register_step_post_hook(lambda *_: noted.append(w.tolist()))
    optimizer.step(closure=lambda: 3.0)
    before.remove()
    optimizer.step()
    after.remove()
    optimizer.step()
    return noted


def around_any_step(lib: Any) -> Any:
    of = importlib.import_module(f"{lib.__name__}.optim.optimizer")
    noted: list[str] = []
    handles = [
        of.register_optimizer_step_pre_hook(lambda *_: noted.append("any before")),
        of.register_optimizer_step_post_hook(lambda *_: noted.append("any after")),
    ]
    _, optimizer = of_parameter(lib)
    optimizer.register_step_pre_hook(lambda *_: noted.append("before"))
    optimizer.register_step_post_hook(lambda *_: noted.append("after"))
    optimizer.step()
    for handle in handles:
        handle.remove()
    optimizer.step()
    return noted


def other_arguments(lib: Any) -> Any:
    _, optimizer = of_parameter(lib)
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: (args, {"closure": lambda: 7.0}))
    found = [optimizer.step()]
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: 3)
    try:
        optimizer.step()
    except RuntimeError as error:
        found.append(type(error).__name__)
    return found


def steps_of_users(lib: Any) -> Any:
    class Halved(lib.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step(closure)

    w, _ = of_parameter(lib)
    optimizer = Halved([w], lr=0.5)
    noted: list[Any] = []
    optimizer.register_step_post_hook(lambda *_: noted.append(w.tolist()))
    optimizer.step()
    return noted[-1]


def around_state_dicts(lib: Any) -> Any:
    _, optimizer = of_parameter(lib, momentum=0.9)
    optimizer.step()
    noted: list[Any] = []
    optimizer.register_state_dict_pre_hook(lambda opt: opt.state.__setitem__("note", 1))
    optimizer.register_state_dict_post_hook(lambda opt, state: {**state, "more": 2})
    state = optimizer.state_dict()
    noted += [sorted(state), state["state"]["note"]]
    _, other = of_parameter(lib, momentum=0.9)
    other.register_load_state_dict_pre_hook(lambda opt, given: noted.append("second"))
    other.register_load_state_dict_pre_hook(
        lambda opt, given: given["param_groups"][0].update(lr=0.25), prepend=True
    )
    other.register_load_state_dict_post_hook(lambda opt: noted.append(opt.param_groups[0]["lr"]))
    other.load_state_dict(state)
    return noted


def a_parameter_twice(lib: Any) -> Any:
    w, _ = of_parameter(lib)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = lib.optim.SGD([w, w], lr=0.5)
    numbers = optimizer.state_dict()["param_groups"][0]["params"]
    return [str(warning.category.__name__) for warning in caught], numbers


def a_rate_that_is_a_tensor(lib: Any) -> Any:
    rate = lib.tensor(0.5)
    _, optimizer = of_parameter(lib, lr=rate)
    schedule = lib.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    found = []
    for _ in range(2):
        optimizer.step()
        schedule.step()
        group = optimizer.param_groups[0]
        found.append([group["lr"] is rate, float(rate), float(group["initial_lr"])])
    return found


def lbfgs_without_gradients(lib: Any) -> Any:
    w = lib.zeros(2, requires_grad=True)
    optimizer = lib.optim.LBFGS([w], tolerance_grad=-1)
    return type(optimizer.step(lambda: lib.tensor([10.0]))).__name__


PROGRAMS = [
    around_steps,
    around_any_step,
    other_arguments,
    steps_of_users,
    around_state_dicts,
    a_parameter_twice,
    a_rate_that_is_a_tensor,
    lbfgs_without_gradients,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_does_as_pytorch_does(program: Any, of_torch: Of) -> None:
    for oracle, there in of_torch(lambda torch: seen(program(torch), exact=False)):
        compare(seen(program(stand_in), exact=False), there, 1e-6, 1e-6, oracle)


def test_it_prints_its_groups() -> None:
    w = mg.zeros(2, requires_grad=True)
    optimizer = mg.optim.SGD([w], lr=0.5)
    optimizer.add_param_group({"params": [mg.zeros(1, requires_grad=True)], "lr": 0.25})
    lines = repr(optimizer).splitlines()
    assert lines[0] == "SGD ("
    assert lines[-1] == ")"
    assert lines.count("    lr: 0.5") == lines.count("    lr: 0.25") == 1
    assert lines.index("Parameter Group 1") > lines.index("Parameter Group 0")


def test_a_copy_has_the_hooks() -> None:
    w, optimizer = of_parameter(mg)
    noted: list[int] = []
    optimizer.register_step_post_hook(lambda *_: noted.append(1))
    other = copy.deepcopy(optimizer)
    other.step()
    assert len(noted) == 1
    assert w.tolist() == [1.0, 2.0]


def test_hooks_are_called_around_compiled_steps() -> None:
    w, optimizer = of_parameter(mg)
    x = mg.tensor([1.0, 1.0])

    @mg.compile
    def step(x: mg.Tensor) -> mg.Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        step(x)
    noted: list[int] = []
    handle = optimizer.register_step_pre_hook(lambda *_: noted.append(1))
    with pytest.warns(PerformanceWarning, match="hooks of optimizers are not compiled"):
        step(x)
    step(x)
    handle.remove()
    step(x)
    assert len(noted) == 2
    assert w.tolist() == [1.0 - 6 * 0.5, 2.0 - 6 * 0.5]


def test_a_rate_that_changes_in_place_reaches_compiled_steps() -> None:
    rate = mg.tensor(0.5)
    w, optimizer = of_parameter(mg, lr=rate)
    x = mg.tensor([1.0, 1.0])

    @mg.compile
    def step(x: mg.Tensor) -> mg.Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        step(x)
    rate.fill_(0.25)
    step(x)
    assert w.tolist() == [1.0 - 3 * 0.5 - 0.25, 2.0 - 3 * 0.5 - 0.25]


def test_a_schedule_keeps_its_bounds() -> None:
    """PyTorch's changes ``base_lr`` in place if that is a Tensor."""
    low, high = mg.tensor(0.1), mg.tensor(0.4)
    _, optimizer = of_parameter(mg, momentum=0.9)
    schedule = mg.optim.lr_scheduler.CyclicLR(optimizer, low, high, 2, cycle_momentum=False)
    rates = []
    for _ in range(4):
        low.mul_(0.5)
        high.mul_(0.5)
        optimizer.step()
        schedule.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx([0.25, 0.4, 0.25, 0.1])
