"""compiled_graph(): a cached graph as straight-line source, which ``local`` runs.

Nothing is walked, looked up or dispatched in a step: each rule's formula stands in its place (small
ones as calls of NumPy: :mod:`mpgrad.engine.lowered_formulas`), a sum is an addition where its next
part arrives, and a gradient that a Node passes on is the same name. What is called, and in which
order, is what the loop in :mod:`mpgrad.engine.local` would call, so the bits are the same. Whatever
could differ in the next step (saved tensors and their versions, attributes, whether a result is
contiguous) is read or checked there.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import Any, Protocol

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph, expected_of
from mpgrad.autograd.function_nodes.call_sites import call_in_words
from mpgrad.autograd.running.validate_outputs import add_notes
from mpgrad.base.generated_code import compiled, forget
from mpgrad.engine.graph_source import GraphSource
from mpgrad.engine.node_rules import SignatureRules
from mpgrad.errors import add_note

#: Nodes of a graph that is compiled at most: source takes memory and time for each of them.
NODES_MAX = 1000
#: Nodes of all graphs that are kept as source; what was compiled first goes first.
KEPT_NODES_MAX = 20_000


def compiled_graph(frozen: FrozenGraph) -> Compiled | str:
    """What runs graphs with these tables, or why there is no such thing."""
    if len(frozen.nodes) > NODES_MAX:
        return f"it has more than {NODES_MAX} Nodes (each signature of Node has source of its own)"
    return Compiled(frozen) if any(frozen.runs) else "no Node runs"


def source_of(frozen: FrozenGraph) -> str:
    """The source of such a graph, or why it has none; for people to read."""
    if frozen.remembered is None:
        return "not compiled: it has hooks, packed tensors or Nodes that are not known to recur"
    made = compiled_graph(frozen)
    return f"not compiled: {made}" if isinstance(made, str) else made.source


class Holder(Protocol):
    """What has a graph's source."""

    program: Any


class Kept:
    """The graphs that are kept as source. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._programs: deque[tuple[weakref.ref[Holder], int]] = deque()

    def add(self, holder: Holder, frozen: FrozenGraph) -> Compiled | str:
        """Compile a graph for all that have its tables."""
        program = holder.program = compiled_graph(frozen)
        with self._lock:
            if isinstance(program, Compiled):
                self._programs.append((weakref.ref(holder), len(frozen.nodes)))
            while self.count()[1] > KEPT_NODES_MAX:
                dropped = self._programs.popleft()[0]()
                if dropped is not None:
                    dropped.program = None
        return program

    def count(self) -> tuple[int, int]:
        """How many graphs, and how many Nodes they have."""
        alive = [nodes for holder, nodes in list(self._programs) if holder() is not None]
        return len(alive), sum(alive)


kept = Kept()


def _begin_anew_in_child() -> None:
    # A thread that does not exist in the child may have held the lock.
    global kept
    kept = Kept()


os.register_at_fork(after_in_child=_begin_anew_in_child)


class Compiled:
    """A graph as source, and the function made of it.

    Args:
        frozen: one like the ones that it will run.
    """

    def __init__(self, frozen: FrozenGraph) -> None:
        shared = SignatureRules(frozen, is_cached=True).all()
        source = GraphSource(frozen, shared)
        text = "\n".join(source.lines) + "\n"
        rules = {rule.source: None for rule in shared if rule is not None}
        #: For people to read: with the functions that it calls.
        self.source = "".join([*rules, text])
        #: For each line of it the Node that it belongs to.
        self._node_at = source.nodes
        place = f"backward {id(self):#x} of {frozen.nodes[0].name()}"
        self._backward = compiled("backward", text, source.known, place)
        weakref.finalize(self, forget, place)

    def run(self, frozen: FrozenGraph, times: list[float] | None) -> list[Any] | None:
        """The gradients that are captured; None if this is another graph after all.

        Args:
            frozen: the graph.
            times: gets when each rule began and ended (``perf_counter``).
        """
        try:
            found: list[Any] | None = self._backward(
                frozen.nodes, frozen.seeds, frozen.keep_graph, times
            )
        except Exception as error:
            at = self._failed(error)
            node, name = frozen.nodes[at], frozen.spec.nodes[at].name
            expected = expected_of(frozen, at)
            add_notes(error, name, node.input_metadata, expected, node.takes_undefined)
            if call := call_in_words(node, frozen.nodes):
                add_note(error, call)
            raise
        return found

    def _failed(self, error: Exception) -> int:
        """The Node whose line raised ``error``."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._backward.__code__:
            trace = trace.tb_next
        assert trace is not None
        return self._node_at[trace.tb_lineno - 1]
