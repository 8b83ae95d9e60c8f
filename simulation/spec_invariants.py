"""check_spec(): whether the tables of a frozen graph are well formed."""

from __future__ import annotations

from mpgrad.errors import InvariantViolated
from mpgrad.scheduler.graph_spec import GraphSpec, Target


def check_spec(spec: GraphSpec) -> None:
    """Raise InvariantViolated unless ``spec`` is well formed."""
    count = len(spec.nodes)
    if sorted(spec.order) != list(range(count)):
        raise InvariantViolated("the serial order does not name every node once")
    position = {index: at for at, index in enumerate(spec.order)}
    for index, node in enumerate(spec.nodes):
        for target in node.edges:
            if target is None:
                continue
            _check_target(spec, target, f"an edge of node {index}")
            if position[target[0]] <= position[index]:
                raise InvariantViolated(f"node {target[0]} comes before its producer {index}")
    for target in spec.seeds + spec.captures:
        _check_target(spec, target, "a seed or capture")


def _check_target(spec: GraphSpec, target: Target, what: str) -> None:
    if not 0 <= target[0] < len(spec.nodes):
        raise InvariantViolated(f"{what} ends at node {target[0]}, which does not exist")
    if not 0 <= target[1] < len(spec.nodes[target[0]].input_nbytes):
        raise InvariantViolated(f"{what} ends at input {target[1]}, which does not exist")
