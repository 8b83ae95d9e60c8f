"""A compiled function gives the function's bits: results, gradients, states, random numbers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from mpgrad import nn
from mpgrad.nn import functional as F

STEPS = 5

#: ``make()`` gives (function, Modules and Tensors that it changes, arguments of each step).
Case = Callable[[], tuple[Callable[..., Any], list[Any], list[tuple[Any, ...]]]]


def _normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> mg.Tensor:
    return mg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def _classes(count: int, batch: int, seed: int = 0) -> mg.Tensor:
    return mg.tensor(np.random.default_rng(seed).integers(0, count, batch))


def _bits(value: Any) -> Any:
    if isinstance(value, mg.Tensor):
        grad = value.grad if value.is_leaf else None
        return (
            value.dtype, tuple(value.shape), value.detach().numpy().tobytes(),
            value.requires_grad, value._version, type(value.grad_fn).__name__,
            None if grad is None else _bits(grad),
        )  # fmt: skip
    if isinstance(value, nn.Module):
        return [_bits(t) for t in [*value.parameters(), *value.buffers()]]
    if isinstance(value, mg.optim.Optimizer):
        return [_bits(kept) for kept in value.state.values()]
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_bits(item) for item in value]
    return value


def _history(make: Case, *, compiles: bool) -> tuple[list[Any], Any]:
    """What each step gives and leaves, and the compilation."""
    mg.manual_seed(3)
    function, held, calls = make()
    run = mg.compile(function) if compiles else function
    seen = []
    for arguments in calls:
        result = run(*arguments)
        seen.append(_bits([result, held, list(arguments), mg.get_rng_state()]))
    return seen, getattr(run, "compilation", None)


def _trained(
    layers: Callable[[], nn.Module],
    optimizer: Callable[[Any], Any],
    calls: list[tuple[Any, ...]],
    loss_of: Callable[..., Any] = F.cross_entropy,
) -> Case:
    def make() -> Any:
        model = layers()
        steps = optimizer(model.parameters())

        def step(x: Any, y: Any) -> Any:
            steps.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            steps.step()
            return loss

        return step, [model, steps], copy.deepcopy(calls)

    return make


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def _sgd(parameters: Any) -> Any:
    return mg.optim.SGD(parameters, lr=0.1)


BATCHES = [(_normal(6, 12, seed=k), _classes(4, 6, seed=k)) for k in range(STEPS)]
IMAGES = [(_normal(3, 2, 8, 8, seed=k), _classes(4, 3, seed=k)) for k in range(STEPS)]

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": _sgd,
    "momentum": lambda p: mg.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: mg.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "maximize": lambda p: mg.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1, maximize=True),
    "adam": lambda p: mg.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: mg.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: mg.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: mg.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: mg.optim.Adagrad(p, lr=0.01),
    "adadelta": lambda p: mg.optim.Adadelta(p),
    "adamax": lambda p: mg.optim.Adamax(p),
    "nadam": lambda p: mg.optim.NAdam(p),
    "radam": lambda p: mg.optim.RAdam(p),
    "rprop": lambda p: mg.optim.Rprop(p),
    "asgd": lambda p: mg.optim.ASGD(p),
}

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 4)),
    "norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 4), nn.SiLU()),
    "no bias": lambda: nn.Sequential(nn.Linear(12, 4, bias=False), nn.Sigmoid()),
    "inplace": lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)),
    "wide": lambda: nn.Sequential(nn.Linear(12, 3000), nn.ReLU(), nn.Linear(3000, 4)),
}

CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(27, 4),
    ),
    "average": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 4)
    ),
    "groups": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(144, 4)
    ),
}  # fmt: skip


CASES: dict[str, Case] = {
    **{name: _trained(_perceptron, made, BATCHES) for name, made in OPTIMIZERS.items()},
    **{name: _trained(made, _sgd, BATCHES) for name, made in LAYERS.items()},
    **{name: _trained(made, _sgd, IMAGES) for name, made in CONVOLUTIONS.items()},
}
#: What runs as without ``compile`` today: optimizers whose options a run computes anew, and so on.
NOT_COMPILED: set[str] = set()


def case(make: Case) -> Case:
    CASES[make.__name__.removeprefix("_")] = make
    return make


@case
def _accumulated() -> Any:
    model = _perceptron()

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return step, [model], BATCHES


@case
def _zeroed_in_place() -> Any:
    model = _perceptron()
    steps = _sgd(model.parameters())

    def step(x: Any, y: Any) -> Any:
        steps.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        steps.step()

    return step, [model], BATCHES


@case
def _by_hand() -> Any:
    weight = mg.nn.Parameter(_normal(12, 4))

    def step(x: Any, y: Any) -> Any:
        loss = ((x @ weight).log_softmax(1).exp() - 0.25).square().sum()
        (grad,) = mg.autograd.grad(loss, [weight])
        with mg.no_grad():
            weight.sub_(grad, alpha=0.1)
        return {"loss": loss.detach(), "grad": grad, "both": (grad.sum(), None, 3)}

    return step, [weight], BATCHES


@case
def _views() -> Any:
    weight = mg.nn.Parameter(_normal(6, 4))

    def step(x: Any, y: Any) -> Any:
        weight.grad = None
        h = (x[:, :6].reshape(2, 3, 6).transpose(1, 2).permute(2, 0, 1) * 2).flatten(0, 1)
        h = h @ weight
        h = mg.cat([h, h[:1].expand(2, 4), mg.stack([h[0], h[1]])], 0)
        (h.unsqueeze(0).squeeze(0) ** 2).mean(0).sum().backward()
        return h.detach()[1:], h.detach().t()

    return step, [weight], BATCHES


@case
def _in_place() -> Any:
    weight = mg.nn.Parameter(_normal(12, 4))

    def step(x: Any, y: Any) -> Any:
        weight.grad = None
        h = x @ weight
        h.mul_(2).add_(1)
        h[:, 0] = 0
        h[1:3, 1:] += 1
        h.clamp_(-1, 1)
        h.sum().backward()
        return h.detach()

    return step, [weight], BATCHES


@case
def _changed_argument() -> Any:
    def step(x: Any, y: Any) -> Any:
        x.mul_(2)
        y.add_(1)
        x[0] = 3
        return x, y

    return step, [], copy.deepcopy(BATCHES)


@case
def _random() -> Any:
    def step(x: Any, y: Any) -> Any:
        noise = mg.randn(6, 12) + mg.rand_like(x) * mg.randint(0, 5, (12,))
        return F.dropout(x + noise, 0.3), mg.bernoulli(mg.full((4,), 0.5)), mg.empty(3).normal_()

    return step, [], BATCHES


@case
def _own_generator() -> Any:
    source = mg.Generator().manual_seed(5)

    def step(x: Any, y: Any) -> Any:
        return mg.randn(4, generator=source) + x[0, :4], mg.randperm(5, generator=source)

    return step, [], BATCHES


@case
def _made_inside() -> Any:
    def step(x: Any, y: Any) -> Any:
        base = mg.zeros(6, 12)
        base += x
        return base, mg.ones(2), mg.arange(3) * 2, mg.tensor([1.0, 2.0]), mg.eye(2) @ x[:2, :2]

    return step, [], BATCHES


@case
def _input_gradient() -> Any:
    def step(x: Any, y: Any) -> Any:
        (x.sin() * x).sum().backward()
        return x.grad

    made = [(mg.tensor(x.numpy(), requires_grad=True), y) for x, y in BATCHES]
    return step, [], made


@case
def _embedding() -> Any:
    table = nn.Embedding(4, 5)

    def step(x: Any, y: Any) -> Any:
        table.zero_grad()
        rows = table(y)
        (rows * rows.gather(1, y.unsqueeze(1).expand(6, 5))).sum().backward()
        return rows.detach().index_select(0, y % 3)

    return step, [table], BATCHES


class _Cube(mg.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * x * scale

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x * ctx.scale, None


@case
def _custom_function() -> Any:
    weight = mg.nn.Parameter(_normal(12, 4))

    def step(x: Any, y: Any) -> Any:
        weight.grad = None
        out = _Cube.apply(x @ weight, 0.5)
        out.sum().backward()
        return out.detach()

    return step, [weight], BATCHES


@case
def _twice() -> Any:
    model = _perceptron()

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    return step, [model], BATCHES


@case
def _types() -> Any:
    weight = mg.nn.Parameter(_normal(12, 4, dtype=np.float64))

    def step(x: Any, y: Any) -> Any:
        weight.grad = None
        h = x.double() @ weight
        h = mg.where(h > 0, h, 0.1 * h).max(1).values + h.amin(1) + (h.argmax(1) == y).float()
        h.std().backward()
        return h.detach().long(), h.detach().half()

    return step, [weight], BATCHES


@case
def _clipped() -> Any:
    model = _perceptron()

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        F.mse_loss(model(x), F.one_hot(y, 4).float()).backward()
        return nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    return step, [model], BATCHES


@case
def _evaluated() -> Any:
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)).eval()

    @mg.no_grad()
    def predict(x: Any, y: Any) -> Any:
        scores = model(x)
        return scores, scores.argmax(1), (scores.argmax(1) == y).float().mean()

    return predict, [model], BATCHES


@case
def _recurrent() -> Any:
    model = nn.GRU(4, 5)

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        out, last = model(x.reshape(3, 6, 4))
        (out.sum() + last.prod()).backward()
        return out.detach()

    return step, [model], BATCHES


@case
def _attention() -> Any:
    model = nn.MultiheadAttention(4, 2, batch_first=True)

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        h = x.reshape(6, 3, 4)
        out, weights = model(h, h, h)
        out.square().sum().backward()
        return out.detach(), weights.detach()

    return step, [model], BATCHES


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_function_gives_the_same_bits(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mg.errors.PerformanceWarning)
        with mg.Engine("local"):
            expected, _ = _history(CASES[name], compiles=False)
            found, compilation = _history(CASES[name], compiles=True)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours == theirs, f"step {step}\n{compilation.source()}"
    is_compiled = not compilation.reason and 0 < len(compilation.variants) <= 3
    assert is_compiled == (name not in NOT_COMPILED), compilation.source()
