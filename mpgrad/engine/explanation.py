"""What a backward would do: ``Engine.explain()``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpgrad.autograd.frozen_graphs.costs import is_measured
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.base.duration_text import duration
from mpgrad.base.html_text import html_table, preformatted
from mpgrad.engine.comparing import dear_comparisons
from mpgrad.engine.graph_picture import Box, GraphPicture
from mpgrad.engine.placement import Placed, reason, slow_loops_of
from mpgrad.scheduler.plan_tables import Plan

#: Names that a group shows.
NAMES_MAX = 6
#: Why Nodes that workers could run stay here.
LOCAL_SHARE = "the calling thread is one of the workers here, which saves it the wait for messages"
#: Nodes of which a notebook shows the picture, too.
DRAWN_MAX = 60


@dataclass(frozen=True)
class ExplainedNode:
    """Where one Node would run. ``task`` numbers the NodeTask that it belongs to."""

    name: str
    task: int
    where: str
    cost_us: float
    reason: str


class ReasonGroup(NamedTuple):
    """The Nodes that would run in one place for one reason."""

    where: str
    reason: str
    nodes: tuple[ExplainedNode, ...]

    @property
    def cost_us(self) -> float:
        """Of all of them, in microseconds."""
        return sum([node.cost_us for node in self.nodes])

    @property
    def names(self) -> str:
        """Their names, each once, with how many there are; the most frequent first."""
        counted = Counter(node.name for node in self.nodes).most_common()
        shown = [f"{name} x {n}" if n > 1 else name for name, n in counted[:NAMES_MAX]]
        more = len(counted) - NAMES_MAX
        return ", ".join([*shown, f"{more} more names"] if more > 0 else shown)


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a backward would do. It shows itself in every prompt, and with a picture in notebooks.

    Attributes:
        mode: "local" or "process", as the engine would choose now.
        reason: for that choice.
        work_us: of all Nodes, one after another, in microseconds.
        critical_path_us: of the longest chain of NodeTasks; no number of workers beats it.
        nodes: in the order of the serial engine.
        unmeasured: the number of Functions that have not run yet, whose time is assumed.
        edges: pairs of positions in ``nodes``: from whom, to whom gradients flow.
        notes: what would make it faster.
        source: what ``local`` runs from the third backward of such a graph on, or why it runs a
            loop over the Nodes; None unless it was asked for.
    """

    mode: str
    reason: str
    work_us: float
    critical_path_us: float
    nodes: tuple[ExplainedNode, ...]
    edges: tuple[tuple[int, int], ...] = ()
    unmeasured: int = 0
    notes: tuple[str, ...] = ()
    source: str | None = None

    def groups(self) -> list[ReasonGroup]:
        """The Nodes by place and reason, the dearest group first."""
        found: dict[tuple[str, str], list[ExplainedNode]] = {}
        for node in self.nodes:
            found.setdefault((node.where, node.reason), []).append(node)
        groups = [ReasonGroup(*key, tuple(nodes)) for key, nodes in found.items()]
        return sorted(groups, key=lambda group: -group.cost_us)

    def __str__(self) -> str:
        lines = self._head()
        for group in self.groups():
            lines.append(
                f"{len(group.nodes):>5} in {_place(group.where, len(group.nodes))}, "
                f"{duration(group.cost_us)}: {group.reason}"
            )
            lines.append(f"      {group.names}")
        return "\n".join([*lines, *self.notes, *self._source()])

    __repr__ = __str__

    def table(self) -> str:
        """A line for each Node, in the order of the serial engine."""
        width = max((len(node.name) for node in self.nodes), default=4)
        rows = [
            f"{node.name:<{width}}  task {node.task:>4}  {node.where:<6}  "
            f"{duration(node.cost_us):>7}  {node.reason}"
            for node in self.nodes
        ]
        return "\n".join([*self._head(), *rows, *self.notes, *self._source()])

    def _head(self) -> list[str]:
        nodes, tasks = len(self.nodes), len({node.task for node in self.nodes})
        what = "1 Function has" if self.unmeasured == 1 else f"{self.unmeasured} Functions have"
        assumed = f" (assumed: {what} not run yet)" if self.unmeasured else ""
        return [
            f"{nodes} node{'s'[: nodes != 1]} in {tasks} task{'s'[: tasks != 1]}, "
            f"{duration(self.work_us)} of work, critical path "
            f"{duration(self.critical_path_us)}{assumed}",
            f"mode: {self.mode} ({self.reason})",
        ]

    def _source(self) -> Sequence[str]:
        return () if self.source is None else ("", self.source)

    # ------------------------------------------------------------------ pictures

    def to_svg(self) -> str:
        """The graph as a picture; its longest chain stands out.

        Raises:
            ValueError: it has more than ``graph_picture.BOXES_MAX`` Nodes.
        """
        return self._picture().to_svg()

    def to_dot(self) -> str:
        """The graph for Graphviz."""
        return self._picture().to_dot()

    def to_mermaid(self) -> str:
        """The graph for pages that show Mermaid."""
        return self._picture().to_mermaid()

    def _picture(self) -> GraphPicture:
        boxes = [
            Box(node.name, f"{node.where}, task {node.task}, {duration(node.cost_us)}",
                node.where, node.reason)
            for node in self.nodes
        ]  # fmt: skip
        return GraphPicture(boxes, self.edges, self._longest_chain())

    def _longest_chain(self) -> list[int]:
        """Edges lead from earlier to later Nodes of the serial order."""
        total = [node.cost_us for node in self.nodes]
        came_from: list[int | None] = [None] * len(total)
        for source, target in sorted(self.edges):
            through = total[source] + self.nodes[target].cost_us
            if through > total[target]:
                total[target], came_from[target] = through, source
        path: list[int] = []
        last = max(range(len(total)), key=total.__getitem__) if total else None
        while last is not None:
            path.append(last)
            last = came_from[last]
        return path[::-1]

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows = [
            (
                group.where,
                len(group.nodes),
                duration(group.cost_us),
                group.names,
                group.reason,
            )
            for group in self.groups()
        ]
        found = html_table(("where", "Nodes", "time", "which", "why"), rows)
        picture = self.to_svg() if 0 < len(self.nodes) <= DRAWN_MAX else ""
        return f"{preformatted(chr(10).join([*self._head(), *self.notes]))}{found}{picture}"


def _place(where: str, count: int) -> str:
    if where == "client":
        return "this process"
    return "a worker" if count == 1 else "workers"


def explain(placed: Placed, planned: Plan, mode: str, why: str) -> Explanation:
    """The Explanation of a placed and planned graph."""
    spec = placed.frozen.spec
    place = {index: at for at, index in enumerate(spec.order)}
    nodes, edges = [], []
    for at, index in enumerate(spec.order):
        node = spec.nodes[index]
        is_own = planned.task_of[index] == planned.local_share
        why_there = LOCAL_SHARE if is_own and mode != "local" else reason(placed, index)
        where = "client" if node.on_client or is_own or mode == "local" else "worker"
        nodes.append(
            ExplainedNode(node.name, planned.task_of[index], where, node.cost_us, why_there)
        )
        targets = dict.fromkeys(edge[0] for edge in node.edges if edge is not None)
        edges += [(at, place[target]) for target in targets]
    unmeasured = sum(
        isinstance(node, FunctionNode) and runs and not is_measured(node)
        for node, runs in zip(placed.frozen.nodes, placed.frozen.runs, strict=True)
    )
    return Explanation(
        mode,
        why,
        planned.work_us,
        planned.critical_path_us,
        tuple(nodes),
        tuple(edges),
        unmeasured,
        (*map(str, slow_loops_of(placed.frozen)), *dear_comparisons(placed, planned.work_us)),
    )
