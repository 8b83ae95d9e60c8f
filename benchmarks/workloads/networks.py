"""resnet18 and digits: whole convolutional networks, one step and one epoch of training."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import mpgrad as mg
import mpgrad.nn
import mpgrad.optim
from benchmarks.residual_network import resnet18, set_parameters
from benchmarks.rounds import Array, Case, Contender, Target, average
from benchmarks.runners import (
    NOT_INSTALLED,
    ForwardPass,
    Runner,
    mpgrad_runners,
    torch_runners,
)
from examples.demo import digits as demo_digits

ABOUT_RESNET = """\
ResNet-18 in training mode with cross entropy, float32, random images: the plain one (224 x 224,
batch 8, 1000 classes) and the one for CIFAR (32 x 32, batch 32, 10 classes). torch has its tensors
in channels-last order, the faster one when both were tried."""

ABOUT_DIGITS = """\
One epoch of the demo's network on scikit-learn's handwritten digits: 23 steps of batch 64 with
forward, backward and SGD with momentum, from the same parameters each time. *one step* repeats the
step with the first batch, also under `mg.compile`. Compared are the parameters after it, all as one
vector."""

PROCESS = "mpgrad process"
COMPILED = "mpgrad compiled"
TORCH_2 = "torch 2 threads"
#: By norm: rounding moves some activations across relu's kink and some maxima within their window,
#: and the steps of an epoch add up these differences.
TOLERANCE = 2e-2
_BATCH_SIZE = 64
_STEPS = 20


def resnet(quick: bool) -> Generator[Case, None, None]:
    """Both variants; a sample takes seconds, so that there are few."""
    for name, size, batch in (("32 x 32, batch 32", 32, 32), ("224 x 224, batch 8", 224, 8)):
        with mpgrad_runners("process", "local") as runners:
            runners += torch_runners(1, 2)
            yield Case(
                name,
                [runner.contender(partial(resnet_step, size, batch)) for runner in runners],
                ("mpgrad local", TORCH_2),
                1 if quick else 5,
                tolerance=TOLERANCE,
                warm_up_rounds=1,
            )


def resnet_step(size: int, batch: int, library: Any) -> ForwardPass:
    """The loss of one batch."""
    random = np.random.default_rng(1)
    is_small = size < 224
    model = resnet18(library, is_small=is_small)
    images = library.tensor(random.standard_normal((batch, 3, size, size), np.float32))
    labels = library.tensor(random.integers(0, 10 if is_small else 1000, batch))
    if library is not mg:
        model = model.to(memory_format=library.channels_last)
        images = images.to(memory_format=library.channels_last)
    loss = library.nn.CrossEntropyLoss()
    return ForwardPass(list(model.parameters()), lambda: loss(model(images), labels), (images,))


def digits(quick: bool) -> Generator[Case, None, None]:
    """A whole epoch, and one step."""
    with mpgrad_runners("process", "local", "auto") as runners:
        runners += torch_runners(1, 2)
        batches = _digits_batches()
        contenders = [_epoch(runner, batches) for runner in runners]
        rounds = 2 if quick else 7
        yield Case("one epoch", contenders, (TORCH_2,), rounds, tolerance=TOLERANCE)
    with mpgrad_runners("local") as runners:
        runners += [replace(runners[0], name=COMPILED), *torch_runners(1, 2)]
        yield Case(
            "one step",
            [_step(runner, batches[0]) for runner in runners],
            (TORCH_2,),
            5 if quick else 31,
            targets=(Target(COMPILED, TORCH_2, at_most=1.0),),
            tolerance=TOLERANCE,
        )


def _digits_batches() -> list[tuple[Array, Array]]:
    """The first 23 * 64 images, (64, 1, 8, 8) each, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    steps = range(0, 23 * _BATCH_SIZE, _BATCH_SIZE)
    return [(images[at : at + _BATCH_SIZE], data.target[at : at + _BATCH_SIZE]) for at in steps]


def _epoch(runner: Runner, arrays: list[tuple[Array, Array]]) -> Contender:
    library = runner.library
    if library is None:
        return Contender(runner.name, None, remark=lambda: NOT_INSTALLED)
    batches = [(library.tensor(images), library.tensor(labels)) for images, labels in arrays]
    trained: list[Any] = []

    def prepare() -> Callable[[], None]:
        runner.select()
        model, step = _training(library)
        trained[:] = model.parameters()
        return partial(_train, step, batches)

    return Contender(
        runner.name,
        lambda: average(prepare, lambda work: work(), 1),
        lambda: _as_one(trained),
        runner.same_bits,
        runner.remark,
        runner.renew if runner.has_processes else None,
    )


def _step(runner: Runner, batch: tuple[Array, Array]) -> Contender:
    library = runner.library
    if library is None:
        return Contender(runner.name, None, remark=lambda: NOT_INSTALLED)
    images, labels = library.tensor(batch[0]), library.tensor(batch[1])
    model, step = _training(library)
    if runner.name == COMPILED:
        step = mg.compile(step, fullgraph=True)
    return Contender(
        runner.name,
        lambda: average(runner.select, lambda _: step(images, labels), _STEPS),
        lambda: _as_one(list(model.parameters())),
        runner.same_bits,
    )


def _training(library: Any) -> tuple[Any, Callable[[Any, Any], None]]:
    """The network, and one step of its training."""
    model, loss_function = demo_digits.network(library.nn), library.nn.CrossEntropyLoss()
    set_parameters(library, model)
    optimizer = library.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    def step(images: Any, labels: Any) -> None:
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()

    return model, step


def _as_one(parameters: list[Any]) -> list[Array]:
    """As one vector: biases ahead of a batch norm have no gradient but rounding."""
    return [np.concatenate([parameter.detach().numpy().ravel() for parameter in parameters])]


def _train(step: Callable[[Any, Any], None], batches: list[tuple[Any, Any]]) -> None:
    for images, labels in batches:
        step(images, labels)
