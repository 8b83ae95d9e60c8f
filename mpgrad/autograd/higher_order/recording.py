"""record(): the backward pass as a differentiable graph, for ``create_graph=True``.

Every Node that ran is mirrored by one Node ("backward of mul"), and every sum of several gradients
by another, in the serial engine's order. The mirrors follow the recorded Nodes, never NodeTasks, so
that neither the plan nor the place where something ran shows in the graph.

A graph of operators is executed first, anywhere, all gradients that flow in it captured; then its
mirrors are made. Hooks and custom Functions need recorded tensors while they run: a graph with
those is walked here, Node by Node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from mpgrad.autograd import profiler
from mpgrad.autograd.freezing.client_nodes import HooksBefore, run_post_hooks, runs_node_hooks
from mpgrad.autograd.freezing.frozen_graph import FrozenGraph, ResultSink
from mpgrad.autograd.higher_order.backward_of import SUM_GRADIENTS, backward_of
from mpgrad.autograd.running.validate_outputs import validate_output
from mpgrad.devices.device_arrays import without_memory, zeros
from mpgrad.dispatch.operator_call import call, cpu, record_call
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.errors import add_note
from mpgrad.graph.anomaly import explain_failure, refuse_nan
from mpgrad.graph.anomaly import mode as anomaly
from mpgrad.graph.executing import executing
from mpgrad.graph.grad_modes import enable_grad
from mpgrad.graph.node import InputMetadata, Node
from mpgrad.graph.registry import Operator
from mpgrad.ops import differentiable
from mpgrad.scheduler.graph_spec import Target
from mpgrad.tensors.saved_tensor import SavedTensor
from mpgrad.tensors.tensor import Tensor


def has_only_operators(frozen: FrozenGraph) -> bool:
    """Whether no user code runs in ``frozen``, not even to unpack a saved tensor."""
    return all(
        (isinstance(node, OperatorNode) and not node.has_packed) or not runs
        for node, runs in zip(frozen.nodes, frozen.runs, strict=True)
    )


def with_inputs_captured(frozen: FrozenGraph) -> FrozenGraph:
    """``frozen``, with all that flows into its Nodes captured as well; saved tensors stay."""
    known = set(frozen.spec.captures)
    extra = tuple(
        (index, slot)
        for index in frozen.spec.order
        for slot in range(len(frozen.nodes[index].input_metadata))
        if (index, slot) not in known
    )
    captures = frozen.spec.captures + extra
    return frozen._replace(
        spec=frozen.spec._replace(captures=captures),
        remembered=None,
        sinks=frozen.sinks + tuple(map(ResultSink, range(len(frozen.sinks), len(captures)))),
        keep_graph=True,
    )


def record(
    frozen: FrozenGraph, seeds: Sequence[Tensor | None], captured: dict[Target, Any] | None = None
) -> list[Tensor | None]:
    """Make the mirrors of ``frozen``.

    Args:
        frozen: the graph.
        seeds: its seeds as Tensors, with their own history.
        captured: by (node, input number) the array that flowed in, if the graph was executed;
            without it the graph is run here.

    Returns:
        For each capture of ``frozen`` its gradient, which knows how it was computed.
    """
    recorder = _Recorder(frozen, captured)
    with enable_grad():
        for target, seed in zip(frozen.spec.seeds, seeds, strict=True):
            recorder.add(target, seed, has_value=True)
        for index in frozen.spec.order:
            recorder.step(index)
    return recorder.results


class _Recorder:
    """The gradients under way: by (node, input number), what has flowed in so far."""

    def __init__(self, frozen: FrozenGraph, captured: dict[Target, Any] | None) -> None:
        self._frozen, self._captured = frozen, captured
        #: The profile that is to know what runs here.
        self._profile = profiler.active() if captured is None else None
        self._parts: defaultdict[Target, list[tuple[Tensor, bool]]] = defaultdict(list)
        self._numbers: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, (index, slot) in enumerate(frozen.spec.captures):
            self._numbers[index].append((slot, number))
        self.results: list[Tensor | None] = [None] * len(frozen.sinks)
        #: The Node that ran last, whose backward the sums belong to.
        self._producer: Node | None = None

    def add(self, target: Target, part: Tensor | None, *, has_value: bool) -> None:
        if part is not None:
            self._parts[target].append((part, has_value))

    def step(self, index: int) -> None:
        """Sum what flows into a Node, run or mirror it, and pass on what it gives."""
        node, spec = self._frozen.nodes[index], self._frozen.spec.nodes[index]
        with executing(self._producer or node):
            totals = [self._total((index, slot)) for slot in range(len(node.input_metadata))]
        for slot, number in self._numbers[index]:
            self.results[number] = totals[slot]
        if not self._frozen.runs[index]:
            return
        needs = tuple(target is not None for target in spec.edges)
        expected = [
            None if target is None else self._frozen.nodes[target[0]].input_metadata[target[1]]
            for target in spec.edges
        ]
        started = perf_counter() if self._profile is not None else 0.0
        try:
            with executing(node.subject):
                hooked = self._captured is not None or runs_node_hooks(node)
                outputs = self._outputs(node, totals, needs, expected)
                if not hooked:  # user code may have hooked its Node while it ran
                    outputs = run_post_hooks(node, outputs, totals)
            if anomaly.checks_nan and self._may_give_nan(node):
                arrays = [None if output is None else output._array for output in outputs]
                refuse_nan(node.subject.name(), arrays)
        except Exception as error:
            add_note(error, f"in the backward graph at {spec.name}, with create_graph=True")
            explain_failure(node)
            raise
        if self._profile is not None:
            self._profile.note_nodes(self._frozen, [index], [started, perf_counter()])
        for target, output in zip(spec.edges, outputs, strict=True):
            if target is not None:
                self.add(target, output, has_value=self._captured is None)
        self._producer = node.subject
        if not self._frozen.keep_graph:
            node.release_saved()

    def _may_give_nan(self, node: Node) -> bool:
        """Whether NaN in what ``node`` gives is its fault, and is not known yet."""
        return self._captured is None and not isinstance(node, HooksBefore)

    def _total(self, target: Target) -> Tensor | None:
        parts = self._parts.pop(target, [])
        if not parts:
            return None
        if self._captured is not None and self._captured[target] is None:
            return None  # the formula left it undefined
        if len(parts) == 1:
            ((total, has_value),) = parts
            if self._captured is not None and not has_value:
                total._array = self._captured[target]
            return total
        tensors = [part for part, _ in parts]
        if self._captured is None:
            return call(SUM_GRADIENTS, *tensors)  # type: ignore[no-any-return]
        total = Tensor(self._captured[target])
        _record(SUM_GRADIENTS, tensors, [total], {})
        return total

    def _outputs(
        self,
        node: Node,
        totals: list[Tensor | None],
        needs: tuple[bool, ...],
        expected: list[InputMetadata | None],
    ) -> list[Tensor | None]:
        if not isinstance(node, OperatorNode):
            given = node.apply_recorded(totals, needs)
            return [
                None if value is None or meta is None else _validated(node, at, value, meta)
                for at, (value, meta) in enumerate(zip(given, expected, strict=True))
            ]
        if all(total is None for total in totals):
            return [None] * len(needs)
        results = iter(self._mirror(node, totals, needs, expected))
        return [next(results) if needed else None for needed in needs]

    def _mirror(
        self,
        node: OperatorNode,
        totals: list[Tensor | None],
        needs: tuple[bool, ...],
        expected: list[InputMetadata | None],
    ) -> Sequence[Tensor]:
        """The gradients of an operator Node, with the mirror Node behind them."""
        derived, inputs, attributes = mirrored_call(node, totals, needs, expected)
        if self._captured is None:
            return call(derived, *inputs, **attributes)  # type: ignore[no-any-return]
        outputs = [Tensor(without_memory(*meta)) for meta in expected if meta is not None]
        _record(derived, inputs, outputs, attributes)
        return outputs


def mirrored_call(
    node: OperatorNode,
    grads: Sequence[Tensor | None],
    needs: Sequence[bool],
    expected: Sequence[InputMetadata | None],
) -> tuple[Operator, list[Any], dict[str, Any]]:
    """The call (operator, inputs, attributes) that computes what ``node``'s rule would.

    Args:
        node: the Node.
        grads: the gradients that flow in; at least one is defined.
        needs: for each of its outputs, whether that gradient is wanted.
        expected: for each output that is wanted, what it must look like.
    """
    defined = [
        Tensor(zeros(*meta)) if grad is None else grad
        for grad, meta in zip(grads, node.input_metadata, strict=True)
    ]
    saved, layout = _saved(node, node.operator.wanted_names(needs))
    attributes = {
        "base": node.operator.name,
        "gradients": len(defined),
        "layout": layout,
        "plain": node.plain,
        "wanted": tuple(needs),
        "results": tuple(
            (meta.shape, meta.dtype.str, str(meta.device)) for meta in expected if meta is not None
        ),
    }
    return backward_of(node.operator), [*defined, *saved], attributes


def _saved(
    node: OperatorNode, wanted: Sequence[str]
) -> tuple[list[Any], tuple[tuple[str, int | None], ...]]:
    """What a Node saved, with its history: one after another, and what each is called.

    All of it is unpacked, as in any backward. Only the ``wanted`` names are given: the gradients do
    not depend on the others, whose hooks must not hear of them.
    """
    values: list[Any] = []
    layout: list[tuple[str, int | None]] = []
    for name, entry in node.saved.items():
        entries = entry if isinstance(entry, tuple) else (entry,)
        unpacked = [e.tensor(node) if isinstance(e, SavedTensor) else e for e in entries]
        if name in wanted:
            values += unpacked
            layout.append((name, len(entries) if isinstance(entry, tuple) else None))
    return values, tuple(layout)


def _record(
    recorded: Operator, inputs: Sequence[Any], outputs: list[Tensor], attributes: dict[str, Any]
) -> None:
    """Make the Node of a call whose results are known already."""
    needs = [isinstance(value, Tensor) and value.requires_grad for value in inputs]
    if True in needs:
        record_call(recorded, inputs, outputs, needs, attributes)


def _validated(node: Node, index: int, value: Tensor, expected: InputMetadata) -> Tensor:
    """As ``validate_output``, recorded: its checks, then the same changes as operators."""
    array = validate_output(node.name(), index, value._array, expected, cpu)
    if array is value._array:
        return value
    value = differentiable.sum_to(value, expected.shape)
    if value.dtype != expected.dtype:
        value = differentiable.astype(value, expected.dtype)
    return value if value._array.flags.c_contiguous else differentiable.copy(value)
