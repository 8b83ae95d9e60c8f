"""Rules: makes a NodeStep of a NodeProgram: opens saved arrays and finds the rule's code."""

from __future__ import annotations

import functools
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mpgrad.ops.catalogue  # noqa: F401  (registers every operator)
from mpgrad.arrays.cpu.column_parts import Parts
from mpgrad.autograd.function_nodes.function_node import (
    ContextDescription,
    PortableContext,
    run_function_backward,
)
from mpgrad.autograd.running.node_loop import Apply, NodeStep
from mpgrad.calls.custom_functions.attributes import (
    changed_containers,
    containers_in,
    name_set,
    pack_attributes,
)
from mpgrad.calls.custom_functions.loading import Loaded, establish, load_all, load_attributes
from mpgrad.recording.graph.registry import OPERATORS, Operator
from mpgrad.recording.tensors.refused_reads import REFUSED
from mpgrad.wire.output_record import (
    CHANGED,
    RUN,
    ContextChanged,
    FunctionRun,
    Output,
    content_of,
)
from mpgrad.wire.programs import (
    BranchRule,
    FunctionRule,
    NodeProgram,
    OperatorRule,
    PackedArray,
    Rule,
    Wiring,
    decode_plain,
    decode_wiring,
)
from mpgrad.workers.draw_detection import RandomDraws
from mpgrad.workers.private_arrays import PrivateArrays
from mpgrad.workers.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from mpgrad.workers.calls import CallRunner

#: The versions of user code that stay loaded, and their bytes.
FUNCTIONS_MAX, FUNCTION_BYTES_MAX = 256, 64 << 20
#: The number of decoded wirings that are kept: in a chain of tiny Nodes no two are alike.
WIRINGS_MAX = 32_768
#: The number of decoded descriptions of Functions' contexts that are kept.
DESCRIPTIONS_MAX = 1024
#: The number of decoded plain values that are kept, and their maximum length.
PLAINS_MAX, PLAIN_BYTES_MAX = 1024, 256


_DRAWN = (
    "{0} has used the random numbers of {1} on a worker, where they are not those of the calling "
    'process. Set run_on = "client" on {0}, or make the generator in its backward from a seed that '
    "forward sets on ctx: np.random.default_rng(ctx.seed)"
)
_WRITTEN = (
    "the backward of {0} has changed {1} in place, which on a worker reaches nobody else. Write "
    'into a .copy() of the array or a .clone() of the tensor, or set run_on = "client" on {0}: '
    "compiled code (overwrite_a=True of SciPy, BLAS, ctypes) does not look whether it may write"
)
_SHARED = "memory that others read, too (a saved tensor, an array on ctx, or a gradient)"


class Rules:
    """Builds Steps, and keeps loaded user code by its ``code_id``.

    Args:
        memory: opens the arrays.
        tell: ``tell(kind, output)`` sends a report on a Function to the client.
        calls: gives what differentiates branches.
    """

    def __init__(
        self,
        memory: WorkerMemory,
        tell: Callable[[str, Output], None],
        calls: Callable[[], CallRunner],
    ) -> None:
        self._memory, self._tell, self._calls = memory, tell, calls
        self._functions: OrderedDict[str, Loaded] = OrderedDict()
        self._function_bytes: dict[str, int] = {}

    def step(self, program: NodeProgram) -> NodeStep:
        """One Node of a task, ready to run."""
        rule = program.rule
        wiring = _wiring(program.wiring)
        return NodeStep.of_task(wiring, self._apply(rule, wiring.parts))

    def _apply(self, rule: Rule, parts: Parts | None) -> Apply | None:
        if isinstance(rule, OperatorRule):
            return self._operator(rule, parts)
        if isinstance(rule, BranchRule):
            return self._calls().differentiate(rule)
        return self._function(rule) if isinstance(rule, FunctionRule) else None

    def _operator(self, rule: OperatorRule, parts: Parts | None) -> Any:
        operator = OPERATORS.get(rule.operator) or _derived(rule.operator)

        def apply(xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
            offered = _plain(rule.plain)
            for name, packed in rule.saved.items():
                offered[name] = self._memory.open_packed(packed)
            if rule.several:
                for name, entries in rule.several.items():
                    offered[name] = self._open_several(entries, offered.get(name))
            return operator.backward(xp, grads, offered, needs, parts)

        return apply

    def _function(self, rule: FunctionRule) -> Any:
        def apply(xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
            loaded = self._load(rule)
            if loaded.settings:
                establish(loaded.settings)
            private = PrivateArrays(self._memory, loaded)
            private.note_gradients(grads)
            context = self._context(rule, loaded, private)
            ctx = context.rebuild(loaded.function)
            # A class that sets ``run_on`` promises that its result depends on nothing else, and
            # that the client does not need what it changes on ctx.
            is_promised = loaded.function.run_on is not None
            # No other object refers to the containers.
            watched = {} if is_promised else containers_in(context.attributes, private.compared)
            draws = None if is_promised else RandomDraws()
            # The contents are copied now, because backward may change them in place.
            inputs = tuple(map(content_of, grads)) if rule.is_told else ()
            diverted = self._memory.diverted_bytes()
            REFUSED.clear()
            try:
                results = run_function_backward(loaded.function, ctx, grads, needs)
            finally:
                written = private.what_changed()
                if not written and not is_promised:
                    written = name_set(vars(ctx), context.attributes)
                if written:  # the arrays that it holds are not those of the client any more
                    self._forget(rule.code_id)
            if self._memory.diverted_bytes() > diverted:
                written = _SHARED
            if written:
                raise RuntimeError(_WRITTEN.format(loaded.function.__qualname__, written))
            if REFUSED:  # user code has caught the error
                raise RuntimeError(REFUSED[0])
            if draws is not None and (source := draws.source()):
                raise RuntimeError(_DRAWN.format(loaded.function.__qualname__, source))
            if rule.is_told:
                outputs = tuple(map(content_of, results))
                self._tell(RUN, FunctionRun(rule.node, tuple(needs), inputs, outputs))
            if watched and (changed := changed_containers(vars(ctx), watched)):
                self._tell(CHANGED, _packed(rule.node, changed, loaded.held))
            return results

        return apply

    def _context(
        self, rule: FunctionRule, loaded: Loaded, private: PrivateArrays
    ) -> PortableContext:
        opened = private.open
        saved = tuple(
            [None if packed is None else opened(packed, "a saved tensor") for packed in rule.saved]
        )
        buffers = [opened(buffer, "an array on ctx") for buffer in rule.buffers]
        is_promised = loaded.function.run_on is not None
        noted = None if is_promised else private.on_ctx
        compared: list[str] = []
        attributes = load_attributes(rule.attributes, buffers, loaded.held, noted, compared)
        if compared and not is_promised:
            private.note_values({name: attributes[name] for name in compared})
        return PortableContext(saved, attributes, _description(rule.description))

    def _load(self, rule: FunctionRule) -> Loaded:
        loaded = self._functions.get(rule.code_id)
        if loaded is None:
            blob = self._memory.open_packed(rule.code).tobytes()
            loaded = self._functions[rule.code_id] = load_all(blob)
            self._function_bytes[rule.code_id] = len(blob)
            while (
                len(self._functions) > FUNCTIONS_MAX
                or sum(self._function_bytes.values()) > FUNCTION_BYTES_MAX
            ):
                self._forget(next(iter(self._functions)))
        return loaded

    def _forget(self, code_id: str) -> None:
        self._functions.pop(code_id, None)
        self._function_bytes.pop(code_id, None)

    def _open_several(
        self, entries: tuple[PackedArray | None, ...], scalars: tuple[Any, ...] | None
    ) -> tuple[Any, ...]:
        """The saved tensors of a variadic input, with the scalars among them in place."""
        scalars = scalars or (None,) * len(entries)
        return tuple(
            scalar if packed is None else self._memory.open_packed(packed)
            for packed, scalar in zip(entries, scalars, strict=True)
        )


def _packed(node: int, changed: dict[str, Any], held: tuple[type, ...]) -> ContextChanged:
    buffers: list[bytes] = []
    data = pack_attributes(changed, held, lambda buffer: buffers.append(buffer.raw().tobytes()))
    return ContextChanged(node, data, tuple(buffers))


def _derived(name: str) -> Operator:
    """An operator's derivative as an operator, for ``create_graph``."""
    # Imported here: most workers never need it, and it loads all of backward().
    from mpgrad.autograd.higher_order.backward_of import find_operator

    return find_operator(name)


def _plain(data: bytes) -> dict[str, Any]:
    """A Node's plain values by name."""
    if len(data) > PLAIN_BYTES_MAX:
        return dict(decode_plain(data))
    return dict(_decoded_plain(data)) if data else {}


@functools.lru_cache(PLAINS_MAX)
def _decoded_plain(data: bytes) -> dict[str, Any]:
    """Attributes and shapes, the same in each step of a training loop; do not change them."""
    return dict(decode_plain(data))


@functools.lru_cache(DESCRIPTIONS_MAX)
def _description(data: bytes) -> ContextDescription:
    """The description of a Function's ctx without arrays and attributes."""
    description: ContextDescription = pickle.loads(data)
    return description


@functools.lru_cache(WIRINGS_MAX)
def _wiring(data: bytes) -> Wiring:
    """The wiring around the rule of a Node."""
    return decode_wiring(data)
