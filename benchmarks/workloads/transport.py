"""transport: the time to reach another process, with much data and with none."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import mpgrad as mg
from benchmarks.bare_processes import BareProcesses
from benchmarks.peers.process import NOT_INSTALLED
from benchmarks.rounds import Case, Contender, Target, timed
from benchmarks.runners import (
    ForwardPass,
    Runner,
    find_torch,
    mpgrad_runners,
    torch_runners,
)

ABOUT = """\
*64 MB, first*: a float32 array that already lies in shared memory is handed to one other process,
which has never touched it, and its sum comes back. *warm*: the same array again. *from_numpy* is
memory that mpgrad did not make, which it has to copy at each hand-over. mpgrad does this as the
backward of a `Function` that saved the array; torch sends a shared tensor through a pipe.
*one node*: the backward of a single trivial `Function`, beside one byte through a pipe and back."""

ELEMENTS = 1 << 24
PROCESS = "mpgrad process"
LOCAL = "mpgrad local"
TORCH_SHARED = "torch shared tensor"


class Sum(mg.Function):
    """Scales its first argument's gradient by the sum of the second."""

    @staticmethod
    def forward(ctx: Any, weight: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return weight * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.sum(), None


def cases(quick: bool) -> Generator[Case, None, None]:
    """First large data, then none."""
    rounds = 3 if quick else 7
    with mpgrad_runners("process", "local", workers=1) as (process, local), _summing() as torch_sum:
        yield Case(
            "64 MB, first",
            [
                _sending(PROCESS, process, is_new=True),
                _sending(LOCAL, local),
                _torch_sending(torch_sum, is_new=True),
            ],
            (TORCH_SHARED,),
            rounds,
            targets=(Target(PROCESS, at_most=20.0),),
        )
        yield Case(
            "64 MB, warm",
            [
                _sending(PROCESS, process),
                _sending(f"{PROCESS}, from_numpy", process, mg.from_numpy),
                _sending(LOCAL, local),
                _torch_sending(torch_sum),
            ],
            (TORCH_SHARED,),
            rounds,
            targets=(Target(PROCESS, at_most=6.0),),
        )
    with mpgrad_runners("process", "local") as runners, BareProcesses(2, 0, 1) as idle:
        runners += torch_runners(1)
        contenders = [runner.contender(_one_node, 20) for runner in runners]
        contenders.append(Contender("pipe, one byte", lambda: timed(idle.ping, 20)))
        yield Case("one node", contenders, ("pipe, one byte",), 5 if quick else 31, "us", 1e6)


def _array() -> Any:
    return np.ones(ELEMENTS, np.float32)


def _sending(
    name: str, runner: Runner, wrap: Callable[[Any], Any] = mg.tensor, *, is_new: bool = False
) -> Contender:
    """Backward of one Sum over 64 MB: a new array each time, or always the same."""
    weight = mg.tensor([1.0], requires_grad=True)
    kept: list[Any] = []  # all arrays: a block that is used again is not new to the worker

    def sample() -> float:
        runner.select()
        if is_new or not kept:
            kept.append(wrap(_array()))
        weight.grad = None
        return timed(Sum.apply(weight, kept[-1]).sum().backward)

    return Contender(name, sample, lambda: [weight.grad], runner.same_bits)


def _torch_sending(total: Callable[[Any], float] | None, *, is_new: bool = False) -> Contender:
    if total is None:
        return Contender(TORCH_SHARED, None, remark=lambda: NOT_INSTALLED)
    torch = find_torch()
    kept: list[Any] = []
    found: list[float] = []

    def sample() -> float:
        if is_new or not kept:
            kept.append(torch.from_numpy(_array()).share_memory_())
        found.clear()
        return timed(lambda: found.append(total(kept[-1])))

    return Contender(TORCH_SHARED, sample, lambda: [np.array(found, np.float32)])


@contextmanager
def _summing() -> Iterator[Callable[[Any], float] | None]:
    """A process that sums the torch tensors it is sent; None without torch."""
    torch = find_torch()
    if torch is None:
        yield None
        return
    context = torch.multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_sum_all, args=(there,), daemon=True)
    process.start()
    there.close()

    def total(tensor: Any) -> float:
        here.send(tensor)
        return float(here.recv())

    try:
        yield total
    finally:
        here.close()
        process.join()


def _sum_all(connection: Connection) -> None:
    """The other process: sums until the pipe closes."""
    find_torch().set_num_threads(1)
    while True:
        try:
            tensor = connection.recv()
        except EOFError:
            return
        connection.send(tensor.sum().item())


def _one_node(library: Any) -> ForwardPass:
    """A Function over one number."""
    leaf = library.tensor([1.0], requires_grad=True)
    function = MpgradPass if library is mg else _torch_pass(library)
    return ForwardPass([leaf], lambda: function.apply(leaf))


def _pass_forward(ctx: Any, x: Any) -> Any:
    return x * 2.0


def _pass_backward(ctx: Any, grad: Any) -> Any:
    return grad * 2.0


class MpgradPass(mg.Function):
    """The smallest Function, as mpgrad sees it."""

    forward = staticmethod(_pass_forward)
    backward = staticmethod(_pass_backward)


def _torch_pass(torch: Any) -> Any:
    class TorchPass(torch.autograd.Function):
        """The smallest Function, as torch sees it."""

        forward = staticmethod(_pass_forward)
        backward = staticmethod(_pass_backward)

    return TorchPass
