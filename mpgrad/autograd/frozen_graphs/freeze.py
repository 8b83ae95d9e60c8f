"""freeze(): the part of the recorded graph that a backward needs, as plain tables.

A graph like one that was frozen before gets the same tables (see ``cached_graphs``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from mpgrad.autograd.frozen_graphs.cached_graphs import (
    Guards,
    Key,
    Memory,
    Remembered,
    Walk,
    has_known_kinds,
    is_plain,
    kinds_of,
    walk,
)
from mpgrad.autograd.frozen_graphs.costs import (
    costs_of,
    estimate,
    least_cost,
    second_half_share,
    with_division,
)
from mpgrad.autograd.frozen_graphs.frozen_graph import (
    FrozenGraph,
    ResultSink,
    WantedSink,
    new_leaf_sink,
)
from mpgrad.autograd.frozen_graphs.graph_tables import Cost, GraphTables
from mpgrad.autograd.running.collector import collector_held
from mpgrad.autograd.running.hook_nodes import LOGGER
from mpgrad.recording.graph.node import Edge, Node
from mpgrad.scheduler import tuning
from mpgrad.scheduler.split import split_above_us


def freeze(
    roots: Sequence[Edge],
    seeds: Sequence[Any],
    *,
    wanted: Sequence[tuple[Edge, WantedSink]] | None = None,
    keep_graph: bool,
    cost: Cost,
    renews_costs: bool = True,
) -> FrozenGraph:
    """Freeze the graph behind ``roots``.

    Args:
        roots: the targets of the seeds.
        seeds: gradients of the roots (arrays or None).
        wanted: the edges whose gradients are captured, each once, and their sinks (None:
            ``retain_grad`` keeps the gradient); without it, every leaf.
        keep_graph: whether saved tensors are kept.
        cost: the expected run time of a Node.
        renews_costs: whether a graph like an earlier one gets the costs that were learned since.
    """
    logs = LOGGER.isEnabledFor(logging.DEBUG)
    may_guess = wanted is None and len(roots) == 1 and cost is estimate and not logs
    if may_guess:
        guessed = _guards.find(roots[0])
        if guessed is not None:
            renewed = cost if renews_costs else None
            return _freeze_again(guessed[1], guessed[0], seeds, keep_graph, renewed)
    with collector_held():
        return _freeze_walked(roots, seeds, wanted, keep_graph, cost, may_guess, logs, renews_costs)


def _freeze_walked(
    roots: Sequence[Edge],
    seeds: Sequence[Any],
    wanted: Sequence[tuple[Edge, WantedSink]] | None,
    keep_graph: bool,
    cost: Cost,
    may_guess: bool,
    logs: bool,
    renews_costs: bool,
) -> FrozenGraph:
    """A graph that must be looked at, or made."""
    walked = walk(roots)
    key = None
    if not logs and is_plain(walked.nodes):
        key = _key(walked, roots, wanted, cost)
        known = _memory.find(key, walked.nodes)
        if known is not None:
            if may_guess and known.uses >= GUARDED_FROM_USE:
                _guards.add(walked, roots[0], known)
            renewed = cost if renews_costs else None
            return _freeze_again(known, walked.nodes, seeds, keep_graph, renewed)
    tables = GraphTables(walked, logs=logs)
    if wanted is None:
        tables.want_leaves()
    else:
        tables.want_only(wanted)
    tables.insert_client_nodes()
    frozen = tables.result(roots, seeds, keep_graph, cost)
    if key is not None and not tables.has_hooks and has_known_kinds(walked.nodes):
        known = Remembered(tables.template(walked, roots, frozen), frozen.spec)
        _memory.add(key, known)
        return frozen._replace(remembered=known)
    return frozen


# ---------------------------------------------------------------------- a graph seen before

#: The number of uses of a graph's tables after which it gets a guard as source of its own.
GUARDED_FROM_USE = 2

_memory, _guards = Memory(), Guards()


def _begin_anew_in_child() -> None:
    # A thread that does not exist in the child may have been changing it.
    global _memory, _guards
    _memory, _guards = Memory(), Guards()


os.register_at_fork(after_in_child=_begin_anew_in_child)


def _key(
    walked: Walk,
    roots: Sequence[Edge],
    wanted: Sequence[tuple[Edge, WantedSink]] | None,
    cost: Cost,
) -> Key:
    """All that decides the tables, except what ``Remembered.is_like`` compares."""
    index = walked.index_of
    begins = tuple([(index[node], input_nr) for node, input_nr in roots])
    asked = None
    if wanted is not None:
        asked = tuple(
            [(index.get(node), input_nr, _kind(sink)) for (node, input_nr), sink in wanted]
        )
    return (kinds_of(walked.nodes), tuple(walked.edges), begins, asked, cost)


def _kind(sink: WantedSink) -> Any:
    """The part of a sink that the tables keep."""
    return sink if isinstance(sink, ResultSink) else type(sink)


def _freeze_again(
    known: Remembered, nodes: list[Node], seeds: Sequence[Any], keep_graph: bool, cost: Cost | None
) -> FrozenGraph:
    """The tables of an earlier step with the Nodes of this one.

    ``cost`` is None if the costs stay as they are.
    """
    template = known.template
    kept = nodes if template.kept is None else [nodes[at] for at in template.kept]
    if known.count_use() and cost is not None:
        _look_up_costs(known, kept, cost)
    spec = known.spec
    sinks = [
        new_leaf_sink((kept[target[0]],)) if sink is None else sink
        for target, sink in zip(spec.captures, template.sinks, strict=True)
    ]
    if template.kept_seeds is not None:
        seeds = [seeds[at] for at in template.kept_seeds]
    return FrozenGraph(
        tuple(kept), template.runs, spec, tuple(seeds), tuple(sinks), keep_graph, known
    )


def _look_up_costs(known: Remembered, nodes: Sequence[Node], cost: Cost) -> None:
    """Renew the costs if they have changed; then the tables are new objects.

    New tables must be packed again, so a change that does not affect the plan (``PlanCache``)
    does not renew them.
    """
    specs, split_us = known.spec.nodes, split_above_us(tuning.MESSAGE_US)
    found = costs_of(nodes, known.template.runs, cost)
    now = [least_cost(spec, new) for spec, new in zip(specs, found, strict=True)]
    moved = [abs(new - spec.cost_us) for new, spec in zip(now, specs, strict=True)]
    if max(now, default=0.0) >= split_us:
        moved += [
            abs(second_half_share(node) - spec.second_half_share) * new
            for new, spec, node in zip(now, specs, nodes, strict=True)
            if new >= split_us and spec.is_splittable
        ]
    if sum(moved) > tuning.DRIFT_MAX / 2 * sum(now):
        renewed = [
            spec
            if new == spec.cost_us and new < split_us
            else with_division(spec._replace(cost_us=new), node)
            for new, spec, node in zip(now, specs, nodes, strict=True)
        ]
        known.spec = known.spec._replace(nodes=tuple(renewed))
