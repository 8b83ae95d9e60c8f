"""SpotChecks: now and then a Function that a worker has run is run again in this process, and has
to give the same bits.

What could make a difference is looked for in the code before it is sent
(``calls.custom_functions``). This is the second line, for what no code shows: the state of C
libraries, addresses, files that others change.
"""

from __future__ import annotations

import itertools
import math
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.function_node import FunctionNode, run_function_backward
from mpgrad.autograd.running import engine_slot
from mpgrad.base.device import CPU
from mpgrad.calls.custom_functions.attributes import pack_attributes
from mpgrad.calls.custom_functions.loading import load_attributes
from mpgrad.calls.custom_functions.run_on import SerializedCode, names_read, what_changed
from mpgrad.engine.blas import blas_limit
from mpgrad.errors import ResultsDiffer
from mpgrad.scheduler.instructions import ForwardOutput
from mpgrad.wire.output_record import (
    LOG,
    RUN,
    STDERR,
    STDOUT,
    Content,
    FunctionRun,
    content_of,
    decode_as,
)

#: With "sample", one of so many Functions is run again.
SAMPLED_EVERY = 1000
#: Each Function that takes so many microseconds is run again once in each of so many first
#: backwards, too.
CHEAP_US, FIRST_BACKWARDS = 2_000.0, 10
#: Bytes of gradients from which on a Function is left out: they travel in a message.
BYTES_MAX = 4 << 20
#: Names that an error tells.
NAMES_MAX = 12


class SpotChecks:
    """One per engine. Thread-safe.

    Args:
        check: "off", "sample", "all" or "bytes", see ``Engine``.

    Attributes:
        count: Functions that were run again.
    """

    def __init__(self, check: str) -> None:
        self._check = "sample" if check == "bytes" else check
        self._numbers = itertools.count(1)
        #: How often each Function was chosen because it is new.
        self._chosen: weakref.WeakKeyDictionary[type[Function], int] = weakref.WeakKeyDictionary()
        self.count = 0

    def chooses(self, node: FunctionNode, cost_us: float, *, is_first: bool) -> bool:
        """Whether the worker that runs ``node`` shall tell what it got and gave.

        Args:
            node: of a Function.
            cost_us: what it takes, in microseconds.
            is_first: it is the first one of its Function in its graph.
        """
        if self._check == "off":
            return False
        if self._check == "sample":
            is_promised = node.function.run_on is not None
            if is_promised:
                return False
            is_new = is_first and cost_us <= CHEAP_US and self._counts(node.function)
            if next(self._numbers) % SAMPLED_EVERY and not is_new:
                return False
        return can_travel(node)

    def _counts(self, function: type[Function]) -> bool:
        """Count a backward of ``function``; whether it is one of the first."""
        before = self._chosen.get(function, 0)
        self._chosen[function] = before + 1
        return before < FIRST_BACKWARDS

    def compare(
        self,
        kept: Sequence[ForwardOutput],
        frozen: FrozenGraph,
        code: dict[int, SerializedCode],
        blas_threads: int,
    ) -> None:
        """Run again what workers told of.

        With "sample" nothing runs again in a graph whose Functions have printed or logged: the
        user would see that twice.

        Args:
            kept: the output of workers in this graph.
            frozen: the graph, which has not released what it saved.
            code: of its Functions.
            blas_threads: as many as a worker has.

        Raises:
            ResultsDiffer: one gives something else here.
        """
        if self._check == "sample" and any(output.kind in (STDOUT, STDERR, LOG) for output in kept):
            return
        for output in kept:
            if output.kind != RUN:
                continue
            ran = decode_as(output.data, FunctionRun)
            node: Any = frozen.nodes[ran.node]
            if node.ctx._saved is None:
                continue  # a hook behind it has run, and finds it released, as in `local`
            held = code[ran.node].held
            if what_changed(node.function, held):
                continue  # user code behind it has changed what it reads, as it may
            self.count += 1
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
