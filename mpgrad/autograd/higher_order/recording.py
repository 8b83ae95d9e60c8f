"""record(): the backward pass as a differentiable graph, for ``create_graph=True``.

Every Node that ran gets one mirror Node ("backward of mul"), and so does every sum of several
gradients, in the serial engine's order. Mirrors follow the recorded Nodes, never NodeTasks, so that
neither the plan nor the place of execution is visible in the graph.

A graph of operators is executed first, anywhere, with all inputs captured; then its mirrors are
made. Hooks and custom Functions need recorded tensors while they run, so a graph with those is
executed here, Node by Node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from mpgrad.arrays.cuda.device_arrays import without_memory, zeros
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, ResultSink
from mpgrad.autograd.higher_order.backward_of import SUM_GRADIENTS, backward_of
from mpgrad.autograd.profiling.ranges import RUNNING
from mpgrad.autograd.running.hook_nodes import HooksBefore, run_post_hooks, runs_node_hooks
from mpgrad.autograd.running.validate_outputs import validate_output
from mpgrad.errors import add_note
from mpgrad.ops import differentiable
from mpgrad.recording.dispatch.operator_call import call, cpu, record_call
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.anomaly import explain_failure, refuse_nan
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.executing import executing
from mpgrad.recording.graph.grad_modes import enable_grad
from mpgrad.recording.graph.node import InputMetadata, Node
from mpgrad.recording.graph.registry import Operator
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.scheduler.graph_spec import Target


def has_only_operators(frozen: FrozenGraph) -> bool:
    """Whether no user code runs in ``frozen``, not even to unpack a saved tensor."""
    return all(
        (isinstance(node, OperatorNode) and not node.has_packed) or not runs
        for node, runs in zip(frozen.nodes, frozen.runs, strict=True)
    )


def with_inputs_captured(frozen: FrozenGraph) -> FrozenGraph:
    """``frozen`` with the inputs of all its Nodes captured and saved tensors kept."""
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
        captured: by (node, input number) the input array, if the graph was executed; without it
            the graph is executed here.

    Returns:
        For each capture of ``frozen`` its gradient, with a history.
    """
    recorder = _Recorder(frozen, captured)
    with enable_grad():
        for target, seed in zip(frozen.spec.seeds, seeds, strict=True):
            recorder.add(target, seed, has_value=True)
        for index in frozen.spec.order:
            recorder.step(index)
    return recorder.results


class _Recorder:
    """The gradients so far: by (node, input number), the sum of what has arrived."""

    def __init__(self, frozen: FrozenGraph, captured: dict[Target, Any] | None) -> None:
        self._frozen, self._captured = frozen, captured
        #: The profile to which Nodes that run here are reported.
        self._profile = RUNNING.recording if captured is None else None
        self._parts: defaultdict[Target, list[tuple[Tensor, bool]]] = defaultdict(list)
        self._numbers: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, (index, slot) in enumerate(frozen.spec.captures):
            self._numbers[index].append((slot, number))
        self.results: list[Tensor | None] = [None] * len(frozen.sinks)
        #: The Node that ran last; sums belong to its backward.
        self._producer: Node | None = None

    def add(self, target: Target, part: Tensor | None, *, has_value: bool) -> None:
        if part is not None:
            self._parts[target].append((part, has_value))

    def step(self, index: int) -> None:
        """Sum the inputs of a Node, run or mirror it, and pass its results on."""
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
                if not hooked:  # user code may have added hooks to its Node while it ran
                    outputs = run_post_hooks(node, outputs, totals)
            if anomaly.checks_nan and self._may_give_nan(node):
                arrays = [None if output is None else output._array for output in outputs]
                refuse_nan(node.subject.name(), arrays)
        except Exception as error:
            add_note(error, f"in the backward graph at {spec.name}, with create_graph=True")
            explain_failure(node)
            raise
        if self._profile is not None:
            self._profile.note_nodes(None, self._frozen, [index], [started, perf_counter()])
        for target, output in zip(spec.edges, outputs, strict=True):
            if target is not None:
                self.add(target, output, has_value=self._captured is None)
        self._producer = node.subject
        if not self._frozen.keep_graph:
            node.release_saved()

    def _may_give_nan(self, node: Node) -> bool:
        """Whether a NaN in the results of ``node`` is its fault, and has not been reported."""
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
        """The gradients of an operator Node, with the mirror Node as history."""
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
    """The call (operator, inputs, attributes) that computes the same as ``node``'s rule.

    Args:
        node: the Node.
        grads: its input gradients; at least one is defined.
        needs: for each of its outputs, whether that gradient is needed.
        expected: the metadata of each output that is needed.
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
    """The saved values of a Node with their history, in a row, and their names.

    All of them are unpacked, as in any backward. Only the ``wanted`` names are returned: the
    gradients do not depend on the others, so their hooks must not be called again.
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
    """Record the Node of a call whose results are already known."""
    needs = [isinstance(value, Tensor) and value.requires_grad for value in inputs]
    if True in needs:
        record_call(recorded, inputs, outputs, needs, attributes)


def _validated(node: Node, index: int, value: Tensor, expected: InputMetadata) -> Tensor:
    """As ``validate_output``, recorded: the same checks, then the same changes as operators."""
    array = validate_output(node.name(), index, value._array, expected, cpu)
    if array is value._array:
        return value
    value = differentiable.sum_to(value, expected.shape)
    if value.dtype != expected.dtype:
        value = differentiable.astype(value, expected.dtype)
    return value if value._array.flags.c_contiguous else differentiable.copy(value)
