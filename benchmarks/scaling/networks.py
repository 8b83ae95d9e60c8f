"""The models whose backward graphs are simulated: forward passes as a user would write them.

Each function builds its model, runs forward once and returns the loss. Values do not matter here,
shapes do, so weights stay as the layers make them and inputs are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import mpgrad as mg
from benchmarks.gil_work import spin
from benchmarks.loads import loops_for
from benchmarks.runners import ForwardPass
from mpgrad import nn
from mpgrad.nn import functional as F


class Network(NamedTuple):
    """A model by name."""

    name: str
    about: str
    loss: Callable[[], Any]


# ----------------------------------------------------------------------- ResNet-50

IMAGES = 8


class _Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut (He et al., 2015; stride in the 3x3)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = (
            None
            if stride == 1 and channels == out
            else nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
            )
        )

    def forward(self, x: Any) -> Any:
        beside = x if self.shortcut is None else self.shortcut(x)
        return F.relu(self.layers(x) + beside)


def resnet50() -> Any:
    """He et al., "Deep residual learning for image recognition", 2015, table 1, 50 layers."""
    layers: list[Any] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(_Bottleneck(channels, width, 2 if stage and block == 0 else 1))
            channels = 4 * width
    features = nn.Sequential(*layers)
    classifier = nn.Linear(channels, 1000)
    pooled = features(mg.randn(IMAGES, 3, 224, 224)).mean(dim=(2, 3))
    return F.cross_entropy(classifier(pooled), mg.tensor(_integers(IMAGES, 1000)))


# ----------------------------------------------------------------------- GPT-2

TOKENS, WIDTH, HEADS, BLOCKS, VOCABULARY = 256, 768, 12, 12, 50257


class _Block(nn.Module):
    """Attention and a perceptron, each after a layer norm (Radford et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = [
            (nn.Parameter(mg.ones(WIDTH)), nn.Parameter(mg.zeros(WIDTH))) for _ in range(2)
        ]
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (
            part.reshape(TOKENS, HEADS, WIDTH // HEADS).transpose(0, 1)
            for part in self.attend(self._norm(x, 0)).split(WIDTH, dim=1)
        )
        scores = q @ k.transpose(1, 2) * (HEADS / WIDTH) ** 0.5 + mask
        mixed = (F.softmax(scores, dim=-1) @ v).transpose(0, 1).reshape(TOKENS, WIDTH)
        x = x + self.project(mixed)
        return x + self.narrow(F.gelu(self.widen(self._norm(x, 1))))

    def _norm(self, x: Any, which: int) -> Any:
        return F.layer_norm(x, (WIDTH,), *self.norms[which])


def gpt2() -> Any:
    """GPT-2 small (124 million parameters), one sequence; input and output embedding are one."""
    embedding = nn.Parameter(mg.randn(VOCABULARY, WIDTH) * 0.02)
    positions = nn.Parameter(mg.randn(TOKENS, WIDTH) * 0.02)
    tokens = mg.tensor(_integers(TOKENS + 1, VOCABULARY))
    mask = mg.tensor(np.triu(np.full((TOKENS, TOKENS), -math.inf, np.float32), 1))
    x = F.embedding(tokens[:-1], embedding) + positions
    for _ in range(BLOCKS):
        x = _Block()(x, mask)
    x = F.layer_norm(x, (WIDTH,), nn.Parameter(mg.ones(WIDTH)), nn.Parameter(mg.zeros(WIDTH)))
    return F.cross_entropy(F.linear(x, embedding), tokens[1:])


# ----------------------------------------------------------------------- mixtures of experts

EXPERTS, SAMPLES, ROUTED_TOKENS, MODEL, HIDDEN = 64, 128, 4096, 512, 2048


class Mixture(NamedTuple):
    """The sizes of a mixture of experts."""

    experts: int = EXPERTS
    samples: int = SAMPLES
    model: int = MODEL
    hidden: int = HIDDEN


def mixture(library: Any, shape: Mixture) -> ForwardPass:
    """Experts that all see every sample; a gate weighs them (Jacobs et al., 1991)."""
    rng, functional = np.random.default_rng(0), library.nn.functional

    def leaf(*lengths: int) -> Any:
        array = rng.standard_normal(lengths, np.float32) / lengths[-1] ** 0.5
        return library.tensor(array, requires_grad=True)

    def linear(ins: int, outs: int) -> tuple[Any, Any]:
        return leaf(outs, ins), leaf(outs)

    x, target = (
        library.tensor(rng.standard_normal((shape.samples, shape.model), np.float32))
        for _ in range(2)
    )
    router = linear(shape.model, shape.experts)
    experts = [
        (linear(shape.model, shape.hidden), linear(shape.hidden, shape.model))
        for _ in range(shape.experts)
    ]

    def forward() -> Any:
        gates = functional.softmax(functional.linear(x, *router), dim=-1)
        mixed = library.zeros(shape.samples, shape.model)
        for number, (widen, narrow) in enumerate(experts):
            part = functional.linear(functional.gelu(functional.linear(x, *widen)), *narrow)
            mixed = mixed + gates[:, number : number + 1] * part
        return functional.mse_loss(mixed, target)

    leaves = [*router, *(one for expert in experts for layer in expert for one in layer)]
    return ForwardPass(leaves, forward, (x, target))


def routed_mixture() -> Any:
    """One layer of 64 experts, two for each token (Shazeer et al., 2017), between two projections.

    Tokens are sorted by expert, so that each expert works on one slice. How many each gets is what
    an untrained router gives.
    """
    enter, router, leave = (
        nn.Linear(MODEL, MODEL),
        nn.Linear(MODEL, EXPERTS, bias=False),
        nn.Linear(MODEL, MODEL),
    )
    x = enter(mg.randn(ROUTED_TOKENS, MODEL))
    gates = F.softmax(router(x), dim=-1)
    chosen = np.argsort(-gates.detach().numpy(), axis=1)[:, :2].reshape(-1)
    order = np.argsort(chosen, kind="stable")
    rows = order // 2
    counts = np.bincount(chosen, minlength=EXPERTS)
    weights = gates.reshape(-1)[mg.tensor(rows * EXPERTS + chosen[order])].unsqueeze(1)
    parts = x[mg.tensor(rows)].split([int(count) for count in counts])
    mixed = mg.cat([_expert(part) for part in parts]) * weights
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    mixed = mixed[mg.tensor(back)].reshape(ROUTED_TOKENS, 2, MODEL).sum(dim=1)
    return (leave(mixed) ** 2).mean()


def _expert(part: Any) -> Any:
    """Two layers, as in a transformer."""
    return nn.Linear(HIDDEN, MODEL)(F.gelu(nn.Linear(MODEL, HIDDEN)(part)))


# ----------------------------------------------------------------------- many simulators

ENVIRONMENTS, STEPS, STATE = 256, 8, 64
#: Steps take from half to one and a half of this: contacts, solver iterations and so on differ.
STEP_MS = 1.0


def _step_forward(ctx: Any, state: Any, forces: Any, loops: int) -> Any:
    ctx.loops = loops
    return state * 0.9 + forces


def _step_backward(ctx: Any, grad: Any) -> Any:
    moved = grad * (0.9 + 1e-9 * spin(ctx.loops))
    return moved, grad, None


class MpgradStep(mg.Function):
    """One step of a simulator in Python; its adjoint runs ``loops`` loops."""

    forward = staticmethod(_step_forward)
    backward = staticmethod(_step_backward)


def simulators(library: Any, loops: int) -> ForwardPass:
    """256 environments with 8 steps each, driven by one policy; the mean of their rewards."""
    rng = np.random.default_rng(0)
    step = MpgradStep if library is mg else _step_of(library)
    leaves = [
        library.tensor(rng.standard_normal(lengths, np.float32) / STATE**0.5, requires_grad=True)
        for lengths in ((STATE, STATE), (STATE,))
    ]
    states = [
        library.tensor(rng.standard_normal((1, STATE), np.float32)) for _ in range(ENVIRONMENTS)
    ]
    lengths = rng.uniform(0.5, 1.5, ENVIRONMENTS)

    def forward() -> Any:
        rewards = []
        for state, length in zip(states, lengths, strict=True):
            for _ in range(STEPS):
                forces = library.nn.functional.linear(state, *leaves).tanh()
                state = step.apply(state, forces, int(loops * length))
            rewards.append((state**2).sum())
        return library.stack(rewards).mean()

    return ForwardPass(leaves, forward, tuple(states))


def _step_of(torch: Any) -> Any:
    class TorchStep(torch.autograd.Function):
        """The step as torch sees it."""

        forward = staticmethod(_step_forward)
        backward = staticmethod(_step_backward)

    return TorchStep


# ----------------------------------------------------------------------- all of them


def _integers(count: int, below: int) -> Any:
    return np.random.default_rng(1).integers(0, below, count)


NETWORKS = (
    Network("ResNet-50", f"{IMAGES} images of 224 x 224", resnet50),
    Network("GPT-2 small", f"12 blocks, one sequence of {TOKENS} tokens", gpt2),
    Network(
        "mixture",
        f"{EXPERTS} experts, {SAMPLES} samples, all experts for each",
        lambda: mixture(mg, Mixture()).forward(),
    ),
    Network(
        "routed mixture",
        f"{EXPERTS} experts, {ROUTED_TOKENS} tokens, two experts for each",
        routed_mixture,
    ),
    Network(
        "simulators",
        f"{ENVIRONMENTS} environments of {STEPS} steps of 0.5 to 1.5 ms in Python, one policy",
        lambda: simulators(mg, loops_for(STEP_MS)).forward(),
    ),
)
