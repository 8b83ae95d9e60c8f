"""place(): which Nodes workers may run, which ones belong to the client, and why."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from operator import attrgetter
from typing import NamedTuple

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.autograd.function import Function
from mpgrad.autograd.functions.function_node import FunctionNode
from mpgrad.base.device import CPU
from mpgrad.base.user_frames import level_of_caller
from mpgrad.devices.device_arrays import get_default_device
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.errors import PerformanceWarning
from mpgrad.graph.node import Node
from mpgrad.scheduler.graph_spec import ON_CPU
from mpgrad.shipping.attributes import (
    are_scalars,
    attributes_reason,
    attributes_words,
    classes_in,
)
from mpgrad.shipping.debuggers import file_of, files_with_breakpoints
from mpgrad.shipping.decision import ShippedCode, decide
from mpgrad.shipping.findings import article
from mpgrad.shipping.installed_state import is_known_name
from mpgrad.tensors.hooks_in_force import HOOKS
from mpgrad.tensors.saved_tensor import SavedTensor
from mpgrad.tensors.tensor import Tensor
from mpgrad.wire.surroundings import Around, look_around


class Placed(NamedTuple):
    """A frozen graph with a place for every Node.

    Attributes:
        frozen: with ``on_client`` set.
        code: the code of each shipped Function, by the index of its Node.
        kept: the reason why a Node that a worker could run belongs to the client, by index.
        unasked: those of them that the user did not ask to keep.
        around: what is around its Functions; None if it has none.
    """

    frozen: FrozenGraph
    code: dict[int, ShippedCode]
    kept: dict[int, str]
    unasked: dict[int, str]
    around: Around | None = None


_is_on_client = attrgetter("on_client")


class _Where(NamedTuple):
    """Where one Function runs: in the client for ``reason``, or on a worker if that is empty."""

    reason: str = ""
    code: ShippedCode | None = None
    is_unasked: bool = False


def place(frozen: FrozenGraph) -> Placed:
    """Decide which Nodes workers may run.

    A Node with unreadable saved tensors runs in the client, where it fails when its turn comes and
    not before: hooks before it run, and Nodes before it release their saved tensors. If user code
    runs in the client, ``place`` looks for such Nodes; else the hand-over finds them in time.

    Raises:
        TypeError: a Function has ``run_on = "worker"`` and cannot be pickled.
    """
    code: dict[int, ShippedCode] = {}
    kept: dict[int, str] = {}
    unasked: dict[int, str] = {}
    walked: _Walked | None = None
    for index, node in enumerate(frozen.nodes):
        if isinstance(node, FunctionNode) and frozen.runs[index] and not node.has_packed:
            walked = walked or _Walked()
            found = walked.where(node, frozen.keep_graph)
            if found.code is not None:
                code[index] = found.code
            if found.reason:
                kept[index] = found.reason
            if found.is_unasked:
                unasked[index] = found.reason
    around = None if walked is None else walked.around
    placed = Placed(_with_kept(frozen, kept), code, kept, unasked, around)
    if kept or any(map(_is_on_client, frozen.spec.nodes)):
        return keep_unreadable(placed)
    return placed


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
        self.around = look_around()
        self._stops = files_with_breakpoints()
        self._elsewhere: _Where | None = None
        if get_default_device() is not CPU:
            self._elsewhere = _Where("new tensors in it come to this thread's default device")
        elif HOOKS.innermost() is not None:
            self._elsewhere = _Where("saved-tensor hooks of this thread are in force")

    def where(self, node: FunctionNode, keep_graph: bool) -> _Where:
        function, ctx = node.function, node.ctx
        if self.around.kept_here and function.run_on is None:
            why = f"{self.around.kept_here} was set in this process, and workers cannot have that"
            return _Where(why, is_unasked=True)
        if self._stops and file_of(function) in self._stops:
            return _Where("a debugger has breakpoints in its file")
        if (keep_graph and ctx._clears_on_access) or ctx._was_accessed:
            return _Where("the next backward must find its saved tensors gone, which ctx keeps")
        if self._elsewhere is not None:
            return self._elsewhere
        held: tuple[type, ...] = ()
        attributes = vars(ctx)
        if function.run_on is None and (kind := _more_than_a_tensor(node)):
            return _Where(f"{function.__qualname__} has saved {kind}", is_unasked=True)
        if function.run_on is None and not are_scalars(attributes):
            if reason := attributes_reason(attributes):
                return _Where(attributes_words(function, reason), is_unasked=True)
            held = classes_in(attributes)
        found = self._decisions.get((function, *held))
        if found is None:
            found = self._decisions[function, *held] = _decided(function, held)
        return found


def _decided(function: type[Function], held: tuple[type, ...]) -> _Where:
    decision = decide(function, held)
    if decision.run_on == "client":
        return _Where(decision.reason, is_unasked=function.run_on is None)
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


def warn_of_serial_functions(placed: Placed) -> None:
    """Warn once per reason if Functions run in the client although the user did not ask for it.

    Warns:
        PerformanceWarning: names the first new reason and a remedy.
    """
    new = [text for text in dict.fromkeys(placed.unasked.values()) if text not in _said]
    if not new:
        return
    for text in new:
        _said[text] = None
    while len(_said) > SAID_MAX:
        _said.popitem(last=False)
    frozen = placed.frozen
    functions = sum(
        isinstance(node, FunctionNode) and runs
        for node, runs in zip(frozen.nodes, frozen.runs, strict=True)
    )
    count = len(placed.unasked)
    how = "runs" if count == 1 else "run one after another"
    others = len(set(placed.unasked.values())) - 1
    more = f"{others} more reason{'s' * (others > 1)} and all places" if others else "all places"
    warnings.warn(
        f"{count} of {functions} Functions {how} in this process: {new[0]} "
        f"[engine.explain(loss) shows {more}]",
        PerformanceWarning,
        stacklevel=level_of_caller(),
    )
