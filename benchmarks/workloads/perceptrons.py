"""numpy_branches and mlp_chain: matrix products, which release the GIL and have BLAS threads."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.peers.process import PeerProcess
from benchmarks.perceptron_arrays import Perceptrons
from benchmarks.rounds import Case, Contender, Target
from benchmarks.runners import ForwardPass, mpgrad_runners, other_work, torch_runners

_PEERS = """

HIPS autograd has each leaf as a root of its own (given a list, it takes a third longer). jax runs
the backward of `jax.vjp`, compiled apart from its forward. TensorFlow's backward is no function of
its own: it takes part in *forward and backward*, where jax compiles `jax.grad` in one piece and
both sides time both passes. Each peer has an interpreter of its own."""

ABOUT_BRANCHES = f"""\
8 branches, each a multilayer perceptron of 4 layers, 512 wide, batch 256, float32 (`x @ w + b` and
relu), joined by a sum. torch runs one branch after the other, each product on all of its threads;
mpgrad runs branches side by side with one BLAS thread each. *In a training loop*: the client does
20 ms of other work before each forward pass.{_PEERS}"""

ABOUT_CHAIN = """\
One perceptron of 8 layers, 512 or 1024 wide, batch 256, float32: a chain. Beside the input
gradient, which the next layer waits for, only each layer's weight gradient can run. The peers are
those of `numpy_branches`."""

PROCESS = "mpgrad process"
LOCAL = "mpgrad local"
TORCH_2 = "torch 2 threads"
HIPS_1 = "HIPS autograd, 1 BLAS thread"
HIPS_2 = "HIPS autograd, 2 BLAS threads"
#: By norm. Another order of summation moves a few of the activations nearest to 0 across relu's
#: kink, and each of these then adds its whole gradient or nothing.
TOLERANCE = 1e-2
_THREADS = 2
#: Backwards per sample, see ``rounds.backward``.
_REPEATS = 3


def branches(quick: bool) -> Generator[Case, None, None]:
    """8 perceptrons in parallel."""
    targets = (
        Target(PROCESS, TORCH_2, at_most=1.15),
        Target(PROCESS, LOCAL, at_least=1.7),
        Target(PROCESS, HIPS_1, at_least=2.5),
        Target(PROCESS, HIPS_2, at_least=2.5),
    )
    shape = Perceptrons(8, 4, 512)
    yield from _backward("8 x 4 layers", shape, 2 if quick else 15, targets)
    yield from _in_loop("8 x 4 layers", shape, 2 if quick else 9)
    yield from _whole("8 x 4 layers", shape, 2 if quick else 9)


def chain(quick: bool) -> Generator[Case, None, None]:
    """One deep perceptron."""
    targets = (Target(PROCESS, LOCAL, at_least=1.7), Target(PROCESS, TORCH_2, at_most=1.2))
    narrow, wide = Perceptrons(1, 8, 512), Perceptrons(1, 8, 1024)
    yield from _backward("8 layers", narrow, 5 if quick else 25, targets)
    yield from _in_loop("8 layers", narrow, 5 if quick else 15)
    yield from _whole("8 layers", narrow, 5 if quick else 15)
    yield from _backward("8 layers, 1024 wide", wide, 2 if quick else 15, targets)


def _backward(
    name: str, shape: Perceptrons, rounds: int, targets: tuple[Target, ...]
) -> Generator[Case, None, None]:
    with mpgrad_runners("process", "local", "auto") as runners, ExitStack() as stack:
        runners += torch_runners(1, 2)
        contenders = [runner.contender(partial(program, shape), _REPEATS) for runner in runners]
        contenders += _peers(stack, shape, is_whole=False)
        yield Case(
            name,
            contenders,
            (LOCAL, TORCH_2),
            rounds,
            targets=targets,
            tolerance=TOLERANCE,
        )


def _in_loop(name: str, shape: Perceptrons, rounds: int) -> Generator[Case, None, None]:
    """The backward in a training loop: after other work of the client."""
    with mpgrad_runners("process", "local", "auto") as runners:
        runners += torch_runners(1, 2)
        contenders = [
            runner.contender(partial(program, shape), _REPEATS, after=other_work)
            for runner in runners
        ]
        name = f"{name}, in a training loop"
        yield Case(name, contenders, (LOCAL, TORCH_2), rounds, tolerance=TOLERANCE)


def _whole(name: str, shape: Perceptrons, rounds: int) -> Generator[Case, None, None]:
    with mpgrad_runners("process", "local") as runners, ExitStack() as stack:
        runners += torch_runners(2)
        contenders = [
            runner.contender(partial(program, shape), _REPEATS, is_whole=True) for runner in runners
        ]
        contenders += _peers(stack, shape, is_whole=True)
        tensorflow = stack.enter_context(PeerProcess("TensorFlow, 2 threads", "tensorflow"))
        contenders.append(
            tensorflow.contender("tensorflow_graph.perceptrons", shape, _THREADS, repeats=_REPEATS)
        )
        yield Case(
            f"{name}, forward and backward",
            contenders,
            (LOCAL, TORCH_2),
            rounds,
            tolerance=TOLERANCE,
        )


def _peers(stack: ExitStack, shape: Perceptrons, *, is_whole: bool) -> list[Contender]:
    """HIPS autograd with one BLAS thread and with two, and jax."""
    contenders = []
    for threads, name in ((1, HIPS_1), (_THREADS, HIPS_2)):
        peer = stack.enter_context(PeerProcess(name, "autograd"))
        contenders.append(
            peer.contender("hips_autograd.perceptrons", shape, threads, is_whole, repeats=_REPEATS)
        )
    jax = stack.enter_context(PeerProcess("jax", "jax"))
    return [
        *contenders,
        jax.contender("jax_jit.perceptrons", shape, is_whole, repeats=_REPEATS),
    ]


def program(shape: Perceptrons, library: Any) -> ForwardPass:
    """The sum of the perceptrons' means."""
    batch, arrays = shape.arrays()
    x = library.tensor(batch)
    leaves = [library.tensor(array, requires_grad=True) for array in arrays]
    models = shape.models(leaves)

    def forward() -> Any:
        return library.stack([_mean_output(library, x, model) for model in models]).sum()

    return ForwardPass(leaves, forward, (x,))


def _mean_output(library: Any, x: Any, model: list[tuple[Any, Any]]) -> Any:
    for weight, bias in model:
        x = library.relu(x @ weight + bias)
    return x.mean()
