"""per_node(): time per node of a graph of tiny nodes, for both `overhead` and `scale`."""

from __future__ import annotations

from typing import Any

from benchmarks.rounds import Case, Contender, Point, Target

PROCESS = "mpgrad process"
TORCH = "torch 1 thread"


def per_node(
    shape: str, nodes: int, contenders: list[Contender], rounds: int, **options: Any
) -> Case:
    """The case of one graph; ``options`` are further arguments of ``Case``."""
    return Case(
        f"{shape}, {nodes:,} nodes",
        contenders,
        (TORCH,),
        rounds,
        "us per node",
        1e6 / nodes,
        (Target(PROCESS, at_most=10.0),),
        point=Point(shape, nodes),
        **options,
    )
