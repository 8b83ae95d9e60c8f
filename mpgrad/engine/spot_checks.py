"""SpotChecks: now and then a Function that a worker has run is run again in this process, and has
to give the same bits.

What could make a difference is looked for in the code before it is sent (``shipping``). This is the
second line, for what no code shows: the state of C libraries, addresses, files that others change.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.autograd.functions.function_node import FunctionNode, run_function_backward
from mpgrad.autograd.running import engine_slot
from mpgrad.base.device import CPU
from mpgrad.engine.blas import blas_limit
from mpgrad.errors import ResultsDiffer, add_note
from mpgrad.shipping.attributes import pack_attributes
from mpgrad.shipping.decision import ShippedCode, names_read
from mpgrad.shipping.loading import load_attributes
from mpgrad.wire.output_record import Content, FunctionRun, content_of, decode_as

#: With "sample", one of so many Functions is run again.
SAMPLED_EVERY = 1000
#: Bytes of gradients from which on a Function is left out: they travel in a message.
BYTES_MAX = 4 << 20
#: Names that an error tells.
NAMES_MAX = 12


class SpotChecks:
    """One per engine. Thread-safe.

    Args:
        check: "off", "sample" or "all", see ``Engine``.

    Attributes:
        count: Functions that were run again.
    """

    def __init__(self, check: str) -> None:
        self._check = check
        self._numbers = itertools.count(1)
        self.count = 0

    def chooses(self, node: FunctionNode) -> bool:
        """Whether the worker that runs ``node`` shall tell what it got and gave."""
        if self._check == "off":
            return False
        if self._check == "sample":
            is_promised = node.function.run_on is not None
            if is_promised or next(self._numbers) % SAMPLED_EVERY:
                return False
        return can_travel(node)

    def compare(
        self,
        runs: Sequence[bytes],
        frozen: FrozenGraph,
        code: dict[int, ShippedCode],
        blas_threads: int,
    ) -> None:
        """Run again what workers told of.

        Args:
            runs: what they told.
            frozen: the graph, which has not released what it saved.
            code: of its Functions.
            blas_threads: as many as a worker has.

        Raises:
            ResultsDiffer: one gives something else here.
        """
        for data in runs:
            ran = decode_as(data, FunctionRun)
            node: Any = frozen.nodes[ran.node]
            if node.ctx._saved is None:
                continue  # a hook behind it has run, and finds it released, as in `local`
            self.count += 1
            held = code[ran.node].held
            try:
                results = _run_again(node, ran, held, blas_threads)
            except Exception as error:
                how = f"here it raised {type(error).__name__}: {error}"
                raise ResultsDiffer(_words(node, held, how)) from error
            for number, (there, here) in enumerate(zip(ran.outputs, results, strict=True)):
                if there != content_of(here):
                    raise ResultsDiffer(_words(node, held, _difference(number, there, here)))


def can_travel(node: FunctionNode) -> bool:
    """Whether the gradients of a Function lie on the host and are small enough for a message."""
    flows = [meta for meta in (*node.input_metadata, *node.ctx._inputs) if meta is not None]
    nbytes = sum([math.prod(meta.shape) * meta.dtype.itemsize for meta in flows])
    return nbytes < BYTES_MAX and all(meta.device is CPU for meta in flows)


def failed_again(
    error: BaseException,
    runs: Sequence[bytes],
    at: int,
    frozen: FrozenGraph,
    code: dict[int, ShippedCode],
    blas_threads: int,
) -> BaseException:
    """What a Function that failed on a worker raises here, where a debugger finds its frame.

    Args:
        error: what it raised there; returned if it does not fail here.
        runs: what workers told of failed Functions.
        at: the failed Node.
        frozen, code, blas_threads: as in ``SpotChecks.compare``.
    """
    for data in runs:
        ran = decode_as(data, FunctionRun)
        if ran.node == at:
            node: Any = frozen.nodes[at]
            try:
                _run_again(node, ran, code[at].held, blas_threads)
            except Exception as again:
                for note in getattr(error, "__notes__", ()):
                    add_note(again, note)
                return again
            add_note(error, "it did not fail when it was run again in this process")
    return error


def _run_again(
    node: FunctionNode, ran: FunctionRun, held: tuple[type, ...], blas_threads: int
) -> list[Any]:
    """What ``node`` gives in this process, with a ctx of its own; it can change nothing."""
    context = node.portable_context()
    buffers: list[Any] = []
    attributes = pack_attributes(
        context.attributes, held, lambda buffer: buffers.append(buffer.raw().toreadonly())
    )
    own = context._replace(attributes=load_attributes(attributes, buffers, held))
    inputs = [None if content is None else _array(content) for content in ran.inputs]
    with (
        blas_limit(blas_threads),
        engine_slot.locally(),
        warnings.catch_warnings(record=True),  # the worker's have been shown
    ):
        return run_function_backward(node.function, own.rebuild(node.function), inputs, ran.needs)


def _array(content: Content) -> Any:
    return np.frombuffer(content.data, content.dtype).reshape(content.shape).copy()


def _difference(number: int, there: Content | None, here: Any) -> str:
    """In words, how what a worker gave for argument ``number`` differs."""
    position = f"for argument {number + 1} of forward"
    if there is None:
        return f"{position} None there, a gradient here"
    if here is None:
        return f"{position} a gradient there, None here"
    other = _array(there)
    if (other.shape, other.dtype) != (here.shape, here.dtype):
        return (
            f"{position} {other.dtype} of shape {other.shape} there, {here.dtype} of shape "
            f"{here.shape} here"
        )
    bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (other, here)]
    differs = (bits[0] != bits[1]).reshape(other.size, -1).any(axis=1)
    first = int(np.argmax(differs))
    where = tuple(map(int, np.unravel_index(first, other.shape)))
    return (
        f"{position} {int(differs.sum())} of {other.size} elements differ, the first at {where}: "
        f"{other.reshape(-1)[first]} there, {here.reshape(-1)[first]} here"
    )


def _words(node: FunctionNode, held: tuple[type, ...], how: str) -> str:
    function = node.function
    names = names_read(function, held)
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return (
        f"{node.name()} gave another gradient on a worker than it gives in this process: {how}. "
        f"No .grad was changed. Its backward reads {', '.join(names[:NAMES_MAX]) or 'nothing'}"
        f"{more}; what differs may be the state of a C library, an address, the clock, a random "
        'number, or what another Function has left behind. Set run_on = "client" on '
        f'{function.__qualname__} to run it here always; Engine(check="off") compares nothing'
    )
