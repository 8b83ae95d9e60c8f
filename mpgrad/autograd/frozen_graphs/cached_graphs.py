"""The tables of graphs that were frozen before: each step of a training loop freezes the same one.

The tables of freeze() depend only on what is compared here, so the tables of the earlier step are
used again, as the very same objects. Everything made of them (the plan, encoded programs) is found
by their identity. Graphs with hooks or packed tensors are frozen anew each time.
"""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.base.generated_code import compiled
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.node import Edge, InputMetadata, Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.scheduler import tuning
from mpgrad.scheduler.cost_model import UsualTime
from mpgrad.scheduler.graph_spec import GraphSpec, Target

#: The Nodes of all graphs that are kept, and the graphs with equal edges that differ otherwise.
NODES_MAX = 200_000
VARIANTS_MAX = 16
#: The number of engines for which a graph is kept prepared.
ENGINES_MAX = 4

#: In ``Walk.edges``: no edge; and the entry of Node i is (NODE - i).
NO_EDGE, NODE = -1, -2

#: Of such Nodes the class and the metadata decide rule, name and place; graphs with other Nodes are
#: not recognised.
_KINDS = (OperatorNode, FunctionNode, AccumulateGrad)

_less = operator.lt


class Walk(NamedTuple):
    """The Nodes behind some roots, in the order in which they were found."""

    nodes: list[Node]
    index_of: dict[Node, int]
    #: Per Node with edges NODE - i, then per edge NO_EDGE or (index, input number): one flat list
    #: of small integers is faster to make, hash and compare than lists of tuples.
    edges: list[int]

    def targets(self) -> list[list[Target | None]]:
        """The edges of each Node."""
        found: list[list[Target | None]] = [[] for _ in self.nodes]
        numbers = iter(self.edges)
        for number in numbers:
            if number <= NODE:
                targets = found[NODE - number]
            else:
                targets.append(None if number == NO_EDGE else (number, next(numbers)))
        return found


def walk(roots: Sequence[Edge]) -> Walk:
    """Find the Nodes behind ``roots``; iterative, because chains of 150,000 Nodes are normal."""
    nodes: list[Node] = []
    index: dict[Node, int] = {}
    edges: list[int] = []
    for function, _ in roots:
        if function not in index:
            index[function] = len(nodes)
            nodes.append(function)
    pending = list(range(len(nodes)))
    # This runs once per Node and backward while the workers wait.
    note, add, push = edges.append, nodes.append, pending.append
    while pending:
        at = pending.pop()
        note(NODE - at)
        for edge in nodes[at].next_edges:
            if edge is None:
                note(NO_EDGE)
                continue
            function, input_nr = edge
            target = index.get(function)
            if target is None:
                target = index[function] = len(nodes)
                add(function)
                if function.next_edges:
                    push(target)
            note(target)
            note(input_nr)
    return Walk(nodes, index, edges)


#: Compared by hash: kinds, edges, roots, wanted edges, the cost function.
Key: TypeAlias = tuple[Any, ...]


class Template(NamedTuple):
    """The result of freeze() without the Nodes of the graph."""

    #: Compared in addition to the key.
    metadata: list[tuple[InputMetadata, ...]]
    #: The Nodes without leaves, whose sequence number is always the highest, from the lowest number
    #: to the highest, and where it rises.
    by_sequence: list[int]
    rises: list[bool]
    #: Leaves: their post-accumulate hooks are checked each time.
    leaves: list[int]
    #: The walked Nodes and the seeds that were kept; None: all.
    kept: list[int] | None
    kept_seeds: list[int] | None
    runs: tuple[bool, ...]
    #: The sinks of ``grad()``; None for a leaf's sink, which is made anew.
    sinks: tuple[Any, ...]


class Remembered:
    """One graph, and its tables."""

    __slots__ = (
        "__weakref__",
        "_usual_here",
        "_usual_in_workers",
        "here",
        "placed",
        "prepared",
        "program",
        "spec",
        "steps",
        "template",
        "uses",
    )

    def __init__(self, template: Template, spec: GraphSpec) -> None:
        self.template, self.spec = template, spec
        self.uses = 0
        #: Results of engines for ``spec``, by the settings they depend on (``engine.preparation``).
        self.prepared: dict[Any, Any] = {}
        #: That an engine runs ``spec`` in this process, by what that depends on
        #: (``engine.preparation``); None: not known.
        self.here: Any = None
        #: The compiled function for ``local``; or the reason why there is none; None: not yet.
        self.program: Any = None
        #: Of a large graph, the steps of its Nodes (``engine.graph_steps``); None: not yet.
        self.steps: Any = None
        #: The last result of placing ``spec``: (``spec``, moved Nodes, the new tables).
        self.placed: tuple[GraphSpec, tuple[int, ...], GraphSpec] | None = None
        # These belong to the graph, not to its tables, which are renewed when a cost changes.
        self._usual_here, self._usual_in_workers = UsualTime(), UsualTime()

    def keep_prepared(self, by: Any, made: Any) -> None:
        """Keep an engine's result for the tables."""
        self.prepared[by] = made
        if len(self.prepared) > ENGINES_MAX:
            del self.prepared[next(iter(self.prepared))]

    def is_like(self, nodes: list[Node]) -> bool:
        """Whether ``nodes``, of the same kinds and edges, give the same tables."""
        known = self.template
        if [node.input_metadata for node in nodes] != known.metadata:
            return False
        if _rises(nodes, known.by_sequence) != known.rises:
            return False
        leaves: list[Any] = [nodes[at] for at in known.leaves]
        return not [1 for node in leaves if node.leaf()._post_accumulate_hooks]

    def note(self, took_us: float) -> None:
        """Record the time of the ``local`` engine."""
        self._note(self._usual_here, took_us)

    def learns(self) -> bool:
        """Whether the cost model should learn from this use.

        Every backward of a new graph counts; later only some do, or one that took far longer or
        shorter than usual.
        """
        return self.uses <= tuning.SAMPLES or self.uses % tuning.SAMPLES == 0

    def is_surprised_by(self, took_us: float) -> bool:
        """Record the time of its tasks in workers; whether that is far from the usual time."""
        return self._note(self._usual_in_workers, took_us)

    def _note(self, usual: UsualTime, took_us: float) -> bool:
        """If the time is far from the usual one, its costs are wrong: learn them again."""
        is_surprise = usual.is_far_from(took_us)
        if is_surprise:
            self.uses = 0
        return is_surprise

    def count_use(self) -> bool:
        """Count one more use; whether costs should be looked up again this time."""
        self.uses += 1
        return self.learns()


class Memory:
    """The recently frozen graphs. Thread-safe."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[Key, list[Remembered]] = OrderedDict()
        self._nodes = 0
        self._lock = threading.RLock()

    def find(self, key: Key, nodes: list[Node]) -> Remembered | None:
        """The remembered graph like this one, if any."""
        with self._lock:
            variants = self._graphs.get(key)
            if variants is None:
                return None
            self._graphs.move_to_end(key)
            variants = list(variants)
        return next((known for known in variants if known.is_like(nodes)), None)

    def count(self) -> int:
        """The number of graphs that are remembered."""
        with self._lock:
            return sum(len(variants) for variants in self._graphs.values())

    def add(self, key: Key, known: Remembered) -> None:
        """Remember a graph, and forget the least recently used ones."""
        size = len(known.template.metadata)
        if size > NODES_MAX:
            return
        with self._lock:
            variants = self._graphs.setdefault(key, [])
            variants.append(known)
            self._nodes += size
            if len(variants) > VARIANTS_MAX:
                del variants[0]
                self._nodes -= size
            while self._nodes > NODES_MAX:
                _, dropped = self._graphs.popitem(last=False)
                self._nodes -= len(dropped) * len(dropped[0].template.metadata)


def is_plain(nodes: list[Node]) -> bool:
    """Whether no Node has user code: hooks, or saved tensors that hooks packed."""
    return not [1 for node in nodes if node.hooks is not None or node.has_packed]


def kinds_of(nodes: list[Node]) -> tuple[type[Node], ...]:
    """The class of each Node, which names its operator or Function."""
    return tuple(map(type, nodes))


def has_known_kinds(nodes: list[Node]) -> bool:
    """Whether the tables of such Nodes depend only on what is compared."""
    return all(issubclass(kind, _KINDS) for kind in set(map(type, nodes)))


def sequence_of(walked: Walk) -> tuple[list[int], list[bool]]:
    """``Template.by_sequence`` and ``Template.rises``."""
    nodes = walked.nodes
    # The integers of the index, which exist already: a million of them take 30 MB.
    places = [at for at in walked.index_of.values() if not isinstance(nodes[at], AccumulateGrad)]
    order = sorted(places, key=[node.sequence_nr for node in nodes].__getitem__)
    return order, _rises(nodes, order) or []


def _rises(nodes: list[Node], order: list[int]) -> list[bool] | None:
    """Where the sequence number rises in ``order`` and where it stays; None if it falls.

    The serial order depends only on which of two numbers is higher.
    """
    numbers = [nodes[at].sequence_nr for at in order]
    if sorted(numbers) != numbers:
        return None
    return list(map(_less, numbers, islice(numbers, 1, None)))


# ---------------------------------------------------------------------- recognition without a walk

# A guard is straight-line source that does for one graph, with a single root and all leaves wanted,
# what a walk, a hash and comparisons do for any. The graph is walked only if its guard fails.

#: The maximum number of Nodes of a graph with a guard.
GUARDED_NODES_MAX = 1000

#: The number of roots whose last graph is kept: one per kind of Node.
ROOTS_MAX = 64

#: ``guard(root, input number)`` returns the Nodes in the order of the walk, or None.
Guard = Callable[[Node, int], list[Node] | None]


class Guards:
    """The recently recognised graphs, by the kind of their root. Thread-safe."""

    def __init__(self) -> None:
        self._by_root: dict[type[Node], tuple[Guard, Remembered]] = {}

    def find(self, root: Edge) -> tuple[list[Node], Remembered] | None:
        """The Nodes of a graph like an earlier one, and its record; None if there is none."""
        found = self._by_root.get(type(root[0]))
        if found is None:
            return None
        nodes = found[0](*root)
        return None if nodes is None else (nodes, found[1])

    def add(self, walked: Walk, root: Edge, known: Remembered) -> None:
        """Recognise graphs like this one from now on."""
        if len(walked.nodes) > GUARDED_NODES_MAX:
            return
        node, input_nr = root
        source = guard_source(walked, input_nr, known.template.by_sequence)
        guard = compiled("guard", *source, f"guard of {node.name()}")
        if len(self._by_root) >= ROOTS_MAX:
            self._by_root.clear()
        self._by_root[type(node)] = guard, known


def guard_source(walked: Walk, root_nr: int, by_sequence: list[int]) -> tuple[str, dict[str, Any]]:
    """``def guard(n0, root_nr)``, and the values of its free names.

    A Node has one line, which finds the Nodes behind it; what must be true of all is compared at
    the end: that takes a quarter of the time to compile.

    Args:
        walked: the graph.
        root_nr: the input of its first Node that the seed flows into.
        by_sequence: its Nodes without leaves from the lowest sequence number to the highest.
    """
    nodes, every = walked.nodes, [f"n{at}" for at in range(len(walked.nodes))]
    leaves = [at for at, node in enumerate(nodes) if isinstance(node, AccumulateGrad)]
    lines, found, inputs, same = _finding(walked)
    # Nodes of these kinds have the attributes that are read after them.
    compared: dict[str, tuple[list[str], list[Any]]] = {
        "inputs": (["root_nr", *found], [root_nr, *inputs]),
        "infos": ([f"{one}.input_metadata" for one in every], [n.input_metadata for n in nodes]),
        "hooks": ([f"{one}.hooks" for one in every], [None] * len(nodes)),
        "packed": ([f"n{at}.has_packed" for at in by_sequence], [False] * len(by_sequence)),
    }
    after = [f"n{at}.leaf()._post_accumulate_hooks" for at in leaves]
    rises = _rises(nodes, by_sequence) or []
    conditions = [
        "list(map(type, nodes)) == kinds",
        f"len(set(nodes)) == {len(nodes)}",
        *[f"[{', '.join(names)}] == {what}" for what, (names, _) in compared.items()],
        *same,
        f"not any([{', '.join(after)}])",
    ]
    ordered = "list(map(lt, numbers, numbers[1:])) == rises"
    if not all(rises):
        ordered += " and sorted(numbers) == numbers"
    if lines:  # else it is a leaf alone
        no_such_edges = "    except (TypeError, ValueError):  # no edge, or another number of them"
        lines = ["    try:", *lines, no_such_edges, "        return None"]
    source = [
        "def guard(n0, root_nr):",
        *lines,
        f"    nodes = [{', '.join(every)}]",
        *[f"    if not ({condition}): return None" for condition in conditions],
        f"    numbers = [{', '.join([f'n{at}.sequence_nr' for at in by_sequence])}]",
        f"    return nodes if {ordered} else None",
        "",
    ]
    known: dict[str, Any] = {what: values for what, (_, values) in compared.items()}
    known.update(kinds=list(map(type, nodes)), rises=rises, lt=operator.lt)
    return "\n".join(source), known


def _finding(walked: Walk) -> tuple[list[str], list[str], list[int], list[str]]:
    """The lines that find the Nodes; the names of the inputs that edges lead to, and these inputs;
    and which names must stand for the same."""
    lines, names, inputs, same = list[str](), list[str](), list[int](), list[str]()
    seen = {0}
    for at, targets in enumerate(walked.targets()):
        if not targets and isinstance(walked.nodes[at], AccumulateGrad):
            continue
        found = []
        for nr, target in enumerate(targets):
            this = f"{at}_{nr}"
            if target is None:
                found.append(f"e{this}")
                same.append(f"e{this} is None")
                continue
            index, input_nr = target
            name = f"n{index}"
            if index in seen:
                name = f"n{this}"
                same.append(f"{name} is n{index}")
            seen.add(index)
            names.append(f"i{this}")
            inputs.append(input_nr)
            found.append(f"({name}, i{this})")
        lines.append(f"        [{', '.join(found)}] = n{at}.next_edges")
    return lines, names, inputs, same
