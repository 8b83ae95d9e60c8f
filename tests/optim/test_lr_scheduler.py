"""Learning rate schedulers: the learning rates and momenta of PyTorch's, and their state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import mpgrad as mg
from mpgrad.optim import lr_scheduler
from tests.torch_outcomes import Of

STEPS = 20
# A sequence in a sequence steps its first part twice when it is made.
TWICE = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")


class Halves:
    """A factor with a state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 0.5**epoch


class Shrinks:
    """A factor with a setting."""

    def __init__(self, base: float) -> None:
        self.base = base

    def __call__(self, x: float) -> float:
        return self.base**x


def optimizer_of(lib: Any, kind: str = "SGD") -> Any:
    groups = [
        {"params": [lib.zeros(2, requires_grad=True)], "lr": 0.1},
        {"params": [lib.zeros(2, requires_grad=True)], "lr": 0.4},
    ]
    return getattr(lib.optim, kind)(groups, lr=1.0)


def sequential(s: Any, o: Any) -> Any:
    parts = [s.ConstantLR(o, 0.5, 3), s.ExponentialLR(o, 0.9), s.LinearLR(o, 0.25, 1.0, 4)]
    return s.SequentialLR(o, parts, [4, 11])


def nested(s: Any, o: Any) -> Any:
    inner = s.SequentialLR(o, [s.LinearLR(o, 0.5, 1.0, 3), s.StepLR(o, 2, 0.7)], [5])
    return s.SequentialLR(o, [inner, s.CosineAnnealingWarmRestarts(o, 3)], [12])


MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda epoch: 0.95**epoch),
    "lambda of each group": lambda s, o: s.LambdaLR(o, [lambda e: 1 / (e + 1), lambda e: 0.9**e]),
    "callable object": lambda s, o: s.LambdaLR(o, Halves()),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda epoch: 1 - 0.01 * epoch),
    "step": lambda s, o: s.StepLR(o, 3, 0.5),
    "multi step": lambda s, o: s.MultiStepLR(o, [4, 4, 9, 15], 0.3),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 6),
    "constant for no time": lambda s, o: s.ConstantLR(o, total_iters=0),
    "linear": lambda s, o: s.LinearLR(o, 0.2, 0.9, 8),
    "linear default": lambda s, o: s.LinearLR(o),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.8),
    "polynomial": lambda s, o: s.PolynomialLR(o, 12, 2.0),
    "polynomial default": lambda s, o: s.PolynomialLR(o),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 6, 0.01),
    "cosine of one epoch": lambda s, o: s.CosineAnnealingLR(o, 1),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, eta_min=0.02),
    "restarts that lengthen": lambda s, o: s.CosineAnnealingWarmRestarts(o, 2, 2),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, 0.2, 4),
    "cyclic, lists": lambda s, o: s.CyclicLR(o, [0.01, 0.1], [0.2, 0.3], 3, 5, "triangular2"),
    "cyclic, range": lambda s, o: s.CyclicLR(o, 0.1, 0.2, 4, 2, "exp_range", 0.9),
    "cyclic, function": lambda s, o: s.CyclicLR(
        o, 0.1, 0.2, 4, scale_fn=lambda x: 1 / x, cycle_momentum=False
    ),
    "cyclic, steps": lambda s, o: s.CyclicLR(
        o, 0.1, 0.2, 4, scale_fn=Shrinks(0.7), scale_mode="iterations"
    ),
    "one cycle": lambda s, o: s.OneCycleLR(o, 0.5, 22),
    "one cycle, epochs": lambda s, o: s.OneCycleLR(o, [0.5, 0.6], epochs=5, steps_per_epoch=5),
    "one cycle, lines": lambda s, o: s.OneCycleLR(
        o, 0.5, 20, pct_start=0.4, anneal_strategy="linear"
    ),
    "one cycle, three": lambda s, o: s.OneCycleLR(
        o, 0.5, 25, three_phase=True, div_factor=10.0, final_div_factor=50.0
    ),
    "one cycle, no momentum": lambda s, o: s.OneCycleLR(o, 0.5, 25, cycle_momentum=False),
    "sequential": sequential,
    "nested": nested,
    "chained": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9)]),
    "plateau": lambda s, o: s.ReduceLROnPlateau(o, factor=0.5, patience=1, min_lr=[0.02, 0.1]),
    "plateau, max": lambda s, o: s.ReduceLROnPlateau(
        o, "max", 0.3, 0, 0.05, "abs", cooldown=2, min_lr=0.001
    ),
    "plateau, eps": lambda s, o: s.ReduceLROnPlateau(o, factor=0.5, patience=0, eps=0.03),
}


def seen(scheduler: Any) -> list[Any]:
    """Learning rates and momenta of the groups, and what the scheduler says of them."""
    groups = [
        [group["lr"], group.get("momentum"), list(group.get("betas", ()))]
        for group in scheduler.optimizer.param_groups
    ]
    return [
        groups,
        list(scheduler.get_last_lr()),
        scheduler.last_epoch if hasattr(scheduler, "last_epoch") else None,
    ]


def step(scheduler: Any, index: int) -> None:
    scheduler.optimizer.step()
    if "patience" in vars(scheduler):
        scheduler.step([1.0, 0.9, 0.95, 0.94, 0.97, 0.99, 0.5, 0.51][index % 8])
    else:
        scheduler.step()


def plain(value: Any) -> Any:
    """A state dict as an outcome can hold it."""
    if isinstance(value, dict):
        return {
            str(key): plain(item) for key, item in sorted(value.items(), key=lambda i: str(i[0]))
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else "another"


@TWICE
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "SGD") for name in MAKERS] + [(name, "Adam") for name in MAKERS if "cycl" in name],
)
def test_learning_rates_are_pytorchs(name: str, kind: str, of_torch: Of) -> None:
    def rates(lib: Any) -> list[Any]:
        scheduler = MAKERS[name](lib.optim.lr_scheduler, optimizer_of(lib, kind))
        outcome = [seen(scheduler)]
        for index in range(STEPS):
            step(scheduler, index)
            outcome.append(seen(scheduler))
        return outcome

    ours = without_tuples(rates(mg))
    for oracle, theirs in of_torch(rates):
        close(ours, without_tuples(theirs), oracle)


@TWICE
@pytest.mark.parametrize("name", MAKERS)
def test_a_state_is_pytorchs(name: str, of_torch: Of) -> None:
    def state(lib: Any) -> Any:
        scheduler = MAKERS[name](lib.optim.lr_scheduler, optimizer_of(lib))
        for index in range(7):
            step(scheduler, index)
        return plain(scheduler.state_dict())

    ours = state(mg)
    for oracle, theirs in of_torch(state):
        close(ours, theirs, oracle)


def without_tuples(value: Any) -> Any:
    return [without_tuples(item) for item in value] if isinstance(value, list | tuple) else value


def close(ours: Any, theirs: Any, where: str) -> None:
    """Numbers agree to the last digits, everything else exactly."""
    if isinstance(theirs, dict):
        assert sorted(ours) == sorted(theirs), where
        for key, item in theirs.items():
            close(ours[key], item, f"{where}[{key}]")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            close(p, q, f"{where}[{index}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-15), where
    else:
        assert ours == theirs, where


@TWICE
@pytest.mark.parametrize("name", MAKERS)
def test_a_state_continues_in_another_scheduler(name: str) -> None:
    running = MAKERS[name](lr_scheduler, optimizer_of(mg))
    for index in range(8):
        step(running, index)
    states = copy.deepcopy((running.state_dict(), running.optimizer.state_dict()))
    resumed = MAKERS[name](lr_scheduler, optimizer_of(mg))
    resumed.load_state_dict(states[0])
    resumed.optimizer.load_state_dict(states[1])
    for index in range(8, STEPS):
        step(running, index)
        step(resumed, index)
        assert seen(resumed) == seen(running)
    assert plain(resumed.state_dict()) == plain(running.state_dict())


def test_the_state_of_a_callable_object_is_loaded() -> None:
    first, second = Halves(), Halves()
    running = lr_scheduler.LambdaLR(optimizer_of(mg), first)
    step(running, 0)
    state = running.state_dict()
    lr_scheduler.LambdaLR(optimizer_of(mg), second).load_state_dict(state)
    assert second.calls == first.calls == 4
    assert state["lr_lambdas"] == [{"calls": 4}] * 2


def test_a_scheduler_resumes_at_an_epoch() -> None:
    optimizer = optimizer_of(mg)
    first = lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for index in range(4):
        step(first, index)
    rates = first.get_last_lr()
    assert lr_scheduler.CosineAnnealingLR(optimizer, 10, last_epoch=3).last_epoch == 4
    step(first, 4)
    assert rates != first.get_last_lr()
    with pytest.raises(KeyError, match=r"'initial_lr' is not specified in param_groups\[0\]"):
        lr_scheduler.StepLR(optimizer_of(mg), 1, last_epoch=3)


@pytest.mark.parametrize(
    "name", ["step", "multi step", "constant", "linear", "exponential", "polynomial", "cosine"]
)
def test_an_epoch_may_be_named(name: str, of_torch: Of) -> None:
    def rates(lib: Any) -> list[float]:
        scheduler = MAKERS[name](lib.optim.lr_scheduler, optimizer_of(lib))
        scheduler.optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step(7)
        return scheduler.get_last_lr()

    for oracle, theirs in of_torch(rates):
        close(rates(mg), theirs, oracle)


@pytest.mark.parametrize("epochs", [[0.5, 1.25, 4, 6.5, 13, None, 3]])
@pytest.mark.parametrize("longer", [1, 2])
def test_restarts_go_to_fractions_of_epochs(epochs: list, longer: int, of_torch: Of) -> None:
    def rates(lib: Any) -> list[Any]:
        schedulers = lib.optim.lr_scheduler
        scheduler = schedulers.CosineAnnealingWarmRestarts(optimizer_of(lib), 3, longer)
        found = []
        for epoch in epochs:
            scheduler.step(epoch)
            found.append([*scheduler.get_last_lr(), scheduler.last_epoch])
        return found

    for oracle, theirs in of_torch(rates):
        close(rates(mg), theirs, oracle)


def test_a_tensor_is_a_metric() -> None:
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer_of(mg), patience=0)
    for _ in range(2):
        scheduler.step(mg.tensor(1.0))
    assert scheduler.get_last_lr() == pytest.approx([0.01, 0.04])


def test_a_group_that_came_later_has_the_smallest_learning_rate_of_all() -> None:
    optimizer = optimizer_of(mg)
    schedulers = [
        lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=0.3),
        lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.3, 0.3]),
    ]
    optimizer.add_param_group({"params": [mg.zeros(1, requires_grad=True)], "lr": 2.0})
    schedulers[0].step(1.0)
    schedulers[0].step(1.0)
    assert schedulers[0].get_last_lr()[2] == 0.3
    schedulers[1].step(1.0)
    with pytest.raises(RuntimeError, match=r"param groups in the `optimizer` \(3\) differs"):
        schedulers[1].step(1.0)


def test_a_named_epoch_is_deprecated() -> None:
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer_of(mg))
    step_lr = lr_scheduler.StepLR(optimizer_of(mg), 3)
    step_lr.optimizer.step()
    for make_step in (lambda: plateau.step(1.0, 2), lambda: step_lr.step(2)):
        with pytest.warns(UserWarning, match="epoch parameter"):
            make_step()
    assert plateau.last_epoch == step_lr.last_epoch == 2


def test_a_step_before_the_optimizers_is_named() -> None:
    scheduler = lr_scheduler.StepLR(optimizer_of(mg), 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()
    with pytest.warns(UserWarning, match="please use `get_last_lr"):
        scheduler.get_lr()


def test_own_schedulers_define_get_lr() -> None:
    class Countdown(lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            return [base / (self.last_epoch + 1) for base in self.base_lrs]

    scheduler = Countdown(optimizer_of(mg))
    step(scheduler, 0)
    assert scheduler.get_last_lr() == [0.05, 0.2]


OTHER = optimizer_of(mg)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda s, o: s.StepLR(None, 1), (AttributeError, TypeError), "NoneType"),
        (lambda s, o: s.LambdaLR(o, [len]), ValueError, "Expected 2 lr_lambdas, but got 1"),
        (lambda s, o: s.MultiplicativeLR(o, 1), TypeError, "should be a function, but got int"),
        (lambda s, o: s.ConstantLR(o, 2.0), ValueError, "expected to be between 0 and 1"),
        (lambda s, o: s.LinearLR(o, 0.0), ValueError, "Starting multiplicative factor"),
        (lambda s, o: s.LinearLR(o, 0.5, 2.0), ValueError, "Ending multiplicative factor"),
        (lambda s, o: s.CosineAnnealingWarmRestarts(o, 0), ValueError, "positive integer T_0"),
        (lambda s, o: s.CosineAnnealingWarmRestarts(o, 1, 0), ValueError, "integer T_mult >= 1"),
        (lambda s, o: s.CosineAnnealingWarmRestarts(o, 1, 1, "0"), TypeError, "eta_min must be"),
        (lambda s, o: s.CosineAnnealingWarmRestarts(o, 1).step(-1), ValueError, "non-negative"),
        (lambda s, o: s.CyclicLR(o, [0.1], 0.2), ValueError, "base_lr must have the same length"),
        (lambda s, o: s.CyclicLR(o, 0.1, 0.2, mode="x"), ValueError, "mode is invalid"),
        (lambda s, o: s.OneCycleLR(o, 0.1), ValueError, "define either total_steps OR"),
        (lambda s, o: s.OneCycleLR(o, 0.1, -1), ValueError, "positive integer total_steps"),
        (
            lambda s, o: s.OneCycleLR(o, 0.1, epochs=1, steps_per_epoch=0),
            ValueError,
            "positive integer steps_per_epoch",
        ),
        (lambda s, o: s.OneCycleLR(o, 0.1, 9, pct_start=2.0), ValueError, "between 0 and 1"),
        (
            lambda s, o: s.OneCycleLR(o, 0.1, 9, anneal_strategy="x"),
            ValueError,
            "'cos' or 'linear'",
        ),
        (
            lambda s, o: [step(c, 0) for c in [s.OneCycleLR(o, 0.1, 2)] * 3],
            ValueError,
            "Tried to step 3 times",
        ),
        (lambda s, o: s.ReduceLROnPlateau(o, factor=1.0), ValueError, "Factor should be < 1.0"),
        (lambda s, o: s.ReduceLROnPlateau(o, "x"), ValueError, "mode x is unknown"),
        (
            lambda s, o: s.ReduceLROnPlateau(o, threshold_mode="x"),
            ValueError,
            "threshold mode x is unknown",
        ),
        (lambda s, o: s.ReduceLROnPlateau(o, min_lr=[1]), ValueError, "expected 2 min_lrs, got 1"),
        (lambda s, o: s.ReduceLROnPlateau(3), TypeError, "int is not an Optimizer"),
        (lambda s, o: s.ChainedScheduler([]), ValueError, "at least one scheduler"),
        (lambda s, o: s.ChainedScheduler([3]), TypeError, "should have `optimizer`"),
        (
            lambda s, o: s.ChainedScheduler([s.ReduceLROnPlateau(o)]),
            ValueError,
            "does not support `ReduceLROnPlateau`",
        ),
        (
            lambda s, o: s.ChainedScheduler([s.StepLR(o, 1), s.StepLR(OTHER, 1)]),
            ValueError,
            "belong to the same optimizer",
        ),
        (lambda s, o: s.SequentialLR(o, [s.StepLR(o, 1)], [1]), ValueError, "one more than"),
    ],
)
def test_misuse_is_named(make: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        make(lr_scheduler, optimizer_of(mg))


def test_an_optimizer_without_momentum_is_named() -> None:
    class Plain(mg.optim.Optimizer):
        pass

    optimizer = Plain([mg.zeros(1, requires_grad=True)], {"lr": 0.1})
    with pytest.raises(ValueError, match="must support momentum or beta1"):
        lr_scheduler.CyclicLR(optimizer, 0.1, 0.2)
