"""Options of a wrong type: the error names the class, the option and what is wanted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad.optim import lr_scheduler
from mpgrad.optim.checked_options import _hints

#: Arguments that a scheduler needs.
NEEDED: dict[str, dict[str, Any]] = {
    "LambdaLR": {"lr_lambda": lambda epoch: 0.5},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.5},
    "StepLR": {"step_size": 3},
    "MultiStepLR": {"milestones": [2]},
    "ConstantLR": {},
    "LinearLR": {},
    "ExponentialLR": {"gamma": 0.5},
    "PolynomialLR": {},
    "CosineAnnealingLR": {"T_max": 3},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2},
    "OneCycleLR": {"max_lr": 0.2, "total_steps": 9},
    "ReduceLROnPlateau": {},
}
WRONG: list[tuple[Any, type[Exception]]] = [
    ("0.1", TypeError),
    (np.zeros(3), TypeError),
    ([[0.1]], TypeError),
    (mg.zeros(3), TypeError),
    (1j, TypeError),
    (True, TypeError),
    (float("nan"), ValueError),
]


def matrix() -> mg.Tensor:
    return mg.zeros(2, 2, requires_grad=True)


def sgd() -> mg.optim.SGD:
    return mg.optim.SGD([matrix()], lr=0.1, momentum=0.9)


def numeric_options() -> Iterator[tuple[type, str, str]]:
    names = ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam"]
    for name in [*names, "ASGD", "Rprop", "LBFGS", "Adafactor", "Muon", *NEEDED]:
        kind = getattr(mg.optim if name not in NEEDED else lr_scheduler, name)
        for option, hint in _hints(kind).items():
            if re.search("int|float", str(hint)) and "Callable" not in str(hint):
                yield kind, option, str(hint)


CASES = list(numeric_options())


def make(kind: type, options: dict[str, Any]) -> Any:
    if kind.__name__ in NEEDED:
        return kind(sgd(), **{**NEEDED[kind.__name__], **options})
    return kind([matrix()], **options)


def test_every_class_has_numeric_options() -> None:
    assert len({kind for kind, _, _ in CASES}) == 27
    assert len(CASES) > 110


@pytest.mark.parametrize(
    ("kind", "option", "hint"), CASES, ids=[f"{kind.__name__}-{name}" for kind, name, _ in CASES]
)
def test_a_wrong_value_names_the_option(kind: type, option: str, hint: str) -> None:
    wrong = [*WRONG, *([] if "None" in hint else [(None, TypeError)])]
    for value, error in wrong:
        takes_items = bool(re.fullmatch(r"[a-z.]+\[.*\]", hint, re.IGNORECASE))
        if "[" in hint and isinstance(value, list | np.ndarray | mg.Tensor):
            continue
        if isinstance(value, mg.Tensor) and option == "lr":
            continue  # PyTorch's own words: "Tensor lr must be 1-element"
        with pytest.raises(TypeError if takes_items else error) as caught:
            make(kind, {option: value})
        assert str(caught.value).startswith(f"{kind.__name__}: {option} must be ")


@pytest.mark.parametrize(
    ("make_it", "error", "words"),
    [
        (
            lambda: mg.optim.Adam([matrix()], lr="0.1"),
            TypeError,
            "Adam: lr must be a number, not str ('0.1')",
        ),
        (
            lambda: mg.optim.AdamW([matrix()], betas=(0.9, "0.99")),
            TypeError,
            "AdamW: betas[1] must be a number, not str ('0.99')",
        ),
        (
            lambda: mg.optim.Adam([matrix()], betas=0.9),
            TypeError,
            "Adam: betas must be 2 numbers, not float (0.9)",
        ),
        (
            lambda: mg.optim.Adam([matrix()], betas=(0.9, 0.99, 0.999)),
            ValueError,
            "Adam: betas must be 2 numbers, but there are 3",
        ),
        (
            lambda: mg.optim.SGD([matrix()], lr=float("nan")),
            ValueError,
            "SGD: lr must be a number, not nan",
        ),
        (
            lambda: mg.optim.SGD([matrix()], weight_decay=np.zeros(3)),
            TypeError,
            "SGD: weight_decay must be a number, not ndarray of shape (3,)",
        ),
        (
            lambda: mg.optim.SGD([matrix()], momentum=0.9, nesterov="False"),
            TypeError,
            "SGD: nesterov must be True or False, not str ('False')",
        ),
        (
            lambda: mg.optim.LBFGS([matrix()], max_iter="20"),
            TypeError,
            "LBFGS: max_iter must be an integer, not str ('20')",
        ),
        (
            lambda: lr_scheduler.StepLR(sgd(), 2.5),
            TypeError,
            "StepLR: step_size must be an integer, not float (2.5)",
        ),
        (
            lambda: lr_scheduler.MultiStepLR(sgd(), "30"),
            TypeError,
            "MultiStepLR: milestones must be a list of numbers, not str ('30')",
        ),
        (
            lambda: lr_scheduler.CyclicLR(sgd(), [0.1], ["0.2"]),
            TypeError,
            "CyclicLR: max_lr[0] must be a number, not str ('0.2')",
        ),
        (
            lambda: lr_scheduler.LambdaLR(sgd(), 0.5),
            TypeError,
            "lr_lambda should be a function, but got float",
        ),
    ],
)
def test_the_words(make_it: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(words)}$"):
        make_it()


def test_options_of_a_group_are_checked() -> None:
    with pytest.raises(TypeError, match=r"^Adam: lr must be a number, not str"):
        mg.optim.Adam([{"params": [matrix()], "lr": "0.1"}])
    optimizer = mg.optim.Adam([matrix()])
    with pytest.raises(TypeError, match=r"^Adam: eps must be a number, not None$"):
        optimizer.add_param_group({"params": [matrix()], "eps": None})
    assert len(optimizer.param_groups) == 1


def test_a_users_optimizer_has_options_of_its_own() -> None:
    class Scheduled(mg.optim.Adam):
        def __init__(self, params: Any, schedule: float) -> None:
            super().__init__(params, lr=0.1)
            self.schedule = schedule

    assert Scheduled([matrix()], schedule="cosine").schedule == "cosine"  # type: ignore[arg-type]

    class Doubled(mg.optim.Adam):
        def __init__(self, params: Any, lr: Any) -> None:
            super().__init__(params, lr=lr * 2)

    with pytest.raises(TypeError, match=r"^Doubled: lr must be a number, not str"):
        Doubled([matrix()], lr="0.1")


@pytest.mark.parametrize(
    "number",
    [1, 0.5, np.float32(0.5), np.int64(1), np.array(0.5), mg.tensor(0.5), mg.tensor([0.5])],
)
def test_numbers_of_every_kind_are_taken(number: Any) -> None:
    parameter = matrix()
    parameter.grad = mg.ones(2, 2)
    optimizer = mg.optim.SGD([parameter], lr=number)
    optimizer.step()
    assert float(parameter[0, 0].detach()) == -float(number)


def test_whole_numbers_may_be_floats() -> None:
    parameter = matrix()
    optimizer = mg.optim.LBFGS([parameter], lr=0.5, max_iter=3.0, history_size=2.0)  # type: ignore[arg-type]

    def closure() -> mg.Tensor:
        optimizer.zero_grad()
        loss = ((parameter - 1) ** 2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert optimizer.param_groups[0]["max_eval"] == 3
    assert lr_scheduler.StepLR(sgd(), 30.0).get_last_lr() == [0.1]  # type: ignore[arg-type]
    assert lr_scheduler.CosineAnnealingLR(sgd(), T_max=12.5).T_max == 12.5
    given_once = (epoch for epoch in (1, 2))
    assert lr_scheduler.MultiStepLR(sgd(), given_once).milestones == {1: 1, 2: 1}
