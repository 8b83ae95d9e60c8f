"""place(): which Nodes workers may run, which ones belong to the client, and why."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from operator import attrgetter
from typing import Any, NamedTuple

from mpgrad.arrays.cuda.device_arrays import get_default_device
from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.call_sites import CALL_S, WARN_CALL_S, SlowLoop, slow_loops
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.base.device import CPU
from mpgrad.base.user_frames import level_of_caller
from mpgrad.calls.custom_functions.attributes import Look, are_scalars, look_at
from mpgrad.calls.custom_functions.contents import fingerprint
from mpgrad.calls.custom_functions.debuggers import file_of, files_with_breakpoints
from mpgrad.calls.custom_functions.findings import article
from mpgrad.calls.custom_functions.installed_reads import hooks_of_all_modules
from mpgrad.calls.custom_functions.process_state import is_known_name
from mpgrad.calls.custom_functions.remedies import in_one_line, in_words
from mpgrad.calls.custom_functions.run_on import SerializedCode, decide, is_tried, what_changed
from mpgrad.calls.fork_function import Fork, is_here
from mpgrad.errors import PerformanceWarning
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.hooks_in_force import HOOKS
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.wire.captured_state import CapturedState, capture_state


class Trial(NamedTuple):
    """A Function that runs in the client, and what it could change on its ctx, as it is now."""

    function: type[Function]
    held: tuple[type, ...]
    values: list[Any]
    kept: bytes
    attributes: dict[str, Any]
    before: dict[str, Any]

    def has_changed(self) -> bool:
        """Whether it has changed what is compared."""
        return bool(what_changed(self.function, self.held)) or (
            bool(self.values) and fingerprint(self.values) != self.kept
        )


class Placed(NamedTuple):
    """A frozen graph with a place for every Node.

    Attributes:
        frozen: with ``on_client`` set.
        code: the code of each serialized Function, by the index of its Node.
        kept: the reason why a Node that a worker could run belongs to the client, by index.
        unasked: those of them that the user did not ask to keep, each in one line.
        captured: the state of its Functions; None if it has none.
        trying: Functions that run in the client until it is known that they change nothing.
    """

    frozen: FrozenGraph
    code: dict[int, SerializedCode]
    kept: dict[int, str]
    unasked: dict[int, str]
    captured: CapturedState | None = None
    trying: tuple[Trial, ...] = ()


_is_on_client = attrgetter("on_client")


class _Where(NamedTuple):
    """Where one Function runs: in the client for ``reason``, or on a worker if that is empty."""

    reason: str = ""
    code: SerializedCode | None = None
    is_unasked: bool = False
    #: Attributes of ctx that are compared after the run.
    compared: tuple[str, ...] = ()
    #: The reason in one line.
    line: str = ""


def place(frozen: FrozenGraph) -> Placed:
    """Decide which Nodes workers may run.

    A Node with unreadable saved tensors runs in the client, where it fails when its turn comes and
    not before: hooks before it run, and Nodes before it release their saved tensors. If user code
    runs in the client, ``place`` looks for such Nodes; else the submission finds them in time.

    Raises:
        TypeError: a Function has ``run_on = "worker"`` and cannot be pickled.
    """
    code: dict[int, SerializedCode] = {}
    kept: dict[int, str] = {}
    unasked: dict[int, str] = {}
    compared: dict[int, tuple[str, ...]] = {}
    walked: _Walked | None = None
    for index, node in enumerate(frozen.nodes):
        if isinstance(node, FunctionNode) and frozen.runs[index] and not node.has_packed:
            walked = walked or _Walked()
            found = walked.where(node, frozen.keep_graph)
            if found.code is not None:
                code[index] = found.code
                if found.compared:
                    compared[index] = found.compared
            if found.reason:
                kept[index] = found.reason
            if found.is_unasked:
                unasked[index] = found.line or found.reason
    captured = None if walked is None else walked.captured
    if not kept and not any(map(_is_on_client, frozen.spec.nodes)):
        return Placed(frozen, code, kept, unasked, captured)
    trying = _tried_here(frozen, code, kept, compared)
    placed = Placed(_with_kept(frozen, kept), code, kept, unasked, captured, trying)
    return keep_unreadable(placed)


def _tried_here(
    frozen: FrozenGraph,
    code: dict[int, SerializedCode],
    kept: dict[int, str],
    compared: dict[int, tuple[str, ...]],
) -> tuple[Trial, ...]:
    """Keep the Functions in the client of which a worker could find that they change what they
    read: a graph in which user code runs in the client cannot be repeated there."""
    trying: list[Trial] = []
    nodes: Any = frozen.nodes
    for index, serialized in list(code.items()):
        function, names = nodes[index].function, compared.get(index, ())
        may_change = serialized.may_change or bool(names)
        if may_change and function.run_on is None and not is_tried(function):
            own = vars(nodes[index].ctx)
            values = [own[name] for name in names]
            kept_values = fingerprint(values)
            trying.append(Trial(function, serialized.held, values, kept_values, own, dict(own)))
            kept[index] = "it is tried here once, because other user code runs here"
            del code[index]
    return tuple(trying)


def keep_unreadable(placed: Placed) -> Placed:
    """``placed`` with the Nodes whose saved tensors cannot be read kept in the client."""
    frozen, kept = placed.frozen, dict(placed.kept)
    for index, node in enumerate(frozen.nodes):
        if frozen.runs[index] and not node.has_packed and not _is_readable(node):
            kept[index] = "its saved tensors cannot be read"
    if len(kept) == len(placed.kept):
        return placed
    return placed._replace(frozen=_with_kept(frozen, kept), kept=kept)


def reason(placed: Placed, index: int) -> str:
    """Why a Node runs where it does, in words for the user."""
    node = placed.frozen.nodes[index]
    if not placed.frozen.runs[index]:
        return "passes a finished gradient on"
    if node.has_packed:
        return "hooks unpack its saved tensors in the calling process"
    if index in placed.kept:
        return placed.kept[index]
    if isinstance(node, FunctionNode):
        return "a Function that reads nothing that could differ"
    on_client = placed.frozen.spec.nodes[index].on_client
    return "hooks run in the calling process" if on_client else "an operator"


class _Walked:
    """What is the same for all Functions of one walk: no user code can change anything in it."""

    def __init__(self) -> None:
        self._decisions: dict[tuple[type, ...], _Where] = {}
        self.captured = capture_state()
        self._kept_here = self.captured.kept_here or hooks_of_all_modules()
        self._stops = files_with_breakpoints()
        self._elsewhere: _Where | None = None
        if get_default_device() is not CPU:
            self._elsewhere = _Where("new tensors in it come to this thread's default device")
        elif HOOKS.innermost() is not None:
            self._elsewhere = _Where("saved-tensor hooks of this thread are in force")

    def where(self, node: FunctionNode, keep_graph: bool) -> _Where:
        function, ctx = node.function, node.ctx
        if function is Fork and is_here(node):
            return _Where("its branch was recorded in this process")
        if self._kept_here and function.run_on is None:
            why = f"{self._kept_here} was set in this process, and workers cannot have that"
            return _Where(why, is_unasked=True)
        if self._stops and file_of(function) in self._stops:
            return _Where("a debugger has breakpoints in its file")
        if (keep_graph and ctx._clears_on_access) or ctx._was_accessed:
            return _Where("the next backward must find its saved tensors gone, which ctx keeps")
        if self._elsewhere is not None:
            return self._elsewhere
        held: tuple[type, ...] = ()
        looked: Look | None = None
        attributes = vars(ctx)
        if function.run_on is None and (kind := _more_than_a_tensor(node)):
            return _Where(f"{function.__qualname__} has saved {kind}", is_unasked=True)
        if function.run_on is None and not are_scalars(attributes):
            looked = look_at(attributes)
            if looked.problem:
                name = function.__qualname__
                words, line = in_words(name, looked.problem), in_one_line(name, looked.problem)
                return _Where(words, is_unasked=True, line=line)
            held = looked.classes
        found = self._decisions.get((function, *held))
        if found is None:
            found = self._decisions[function, *held] = _decided(function, held)
        if looked is None or found.code is None:
            return found
        if not looked.objects.isdisjoint(found.code.reached):
            why = (
                f"in {function.__qualname__}, an object on ctx is one that backward reads by name, "
                "too: on a worker these are two. Set what backward needs of it on ctx"
            )
            return _Where(why, is_unasked=True)
        return found._replace(compared=looked.compared)


def _decided(function: type[Function], held: tuple[type, ...]) -> _Where:
    decision = decide(function, held)
    if decision.run_on == "client":
        is_unasked = function.run_on is None
        return _Where(decision.reason, is_unasked=is_unasked, line=decision.line)
    return _Where(code=decision.code)


def _more_than_a_tensor(node: FunctionNode) -> str:
    """A saved tensor of which a worker would have the numbers alone, in words; empty: none."""
    for saved in node.ctx._saved or ():
        tensor = saved._tensor if isinstance(saved, SavedTensor) else None
        if tensor is None:
            continue
        # The package looks its names up when they are used, Tensor too.
        if type(tensor) is not Tensor and not is_known_name(type(tensor)):
            return f"{article(type(tensor).__name__)}, of which a worker would get a Tensor"
        if vars(tensor):
            return f"a tensor with the attribute `{next(iter(vars(tensor)))}`, which workers lack"
    return ""


def _with_kept(frozen: FrozenGraph, kept: dict[int, str]) -> FrozenGraph:
    """``frozen`` with these Nodes in the client; a similar graph gets the very same tables."""
    moved = tuple([at for at in kept if not frozen.spec.nodes[at].on_client])
    if not moved:
        return frozen
    known, spec = frozen.remembered, frozen.spec
    if known is not None and known.placed is not None:
        of, places, tables = known.placed
        if of is spec and places == moved:
            return frozen._replace(spec=tables)
    nodes = list(spec.nodes)
    for at in moved:
        nodes[at] = nodes[at]._replace(on_client=True, device=ON_CPU)
    tables = spec._replace(nodes=tuple(nodes))
    if known is not None:
        known.placed = spec, moved, tables
    return frozen._replace(spec=tables)


def _is_readable(node: Node) -> bool:
    """Whether the saved tensors of ``node`` are still there and unchanged."""
    try:
        if isinstance(node, OperatorNode):
            node.saved_arrays()
        elif isinstance(node, FunctionNode):
            node.portable_context()
    except RuntimeError:
        return False
    return True


# ---------------------------------------------------------------------- a warning to the user

#: The number of reasons that are remembered as reported.
SAID_MAX = 1024

_said: OrderedDict[str, None] = OrderedDict()


def note_said(reason: str) -> None:
    """Warn of this reason no more."""
    _said[reason] = None
    while len(_said) > SAID_MAX:
        _said.popitem(last=False)


def warn_of_serial_functions(placed: Placed) -> None:
    """Warn once per reason if Functions run in the client although the user did not ask for it.

    Warns:
        PerformanceWarning: names the first new reason and a remedy.
    """
    new = [text for text in dict.fromkeys(placed.unasked.values()) if text not in _said]
    if not new:
        return
    for text in new:
        note_said(text)
    others = len(set(placed.unasked.values())) - 1
    more = f" [engine.explain(loss) shows {others} more]" if others else ""
    warnings.warn(f"{new[0]}{more}", PerformanceWarning, stacklevel=level_of_caller())


def slow_loops_of(frozen: FrozenGraph, call_s: float = CALL_S) -> list[SlowLoop]:
    """The loops of ``Function.apply`` that have recorded a graph, the slowest first; see there."""
    spec = frozen.spec
    targets = [[edge[0] for edge in node.edges if edge is not None] for node in spec.nodes]
    return slow_loops(frozen.nodes, spec.order, targets, call_s)


def warn_of_slow_loop(placed: Placed) -> None:
    """Warn once in a program of a loop of ``Function.apply``.

    Warns:
        PerformanceWarning: names its line, and what to write.
    """
    if _SLOW_LOOP in _said or not (placed.code or placed.kept):
        return
    if loops := slow_loops_of(placed.frozen, WARN_CALL_S):
        note_said(_SLOW_LOOP)
        warnings.warn(str(loops[0]), PerformanceWarning, stacklevel=level_of_caller())


_SLOW_LOOP = "a loop of Function.apply"
