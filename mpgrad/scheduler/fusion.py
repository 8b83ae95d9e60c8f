"""group(): which Nodes share a NodeTask.

A message costs tens of microseconds and most Nodes a few, so cheap Nodes are fused into the task
of their producer. A Node joins a group only if *all* its contributions come from that group; so a
group is entered at its first Node alone, and the graph of groups cannot have a cycle: a path that
leaves the group could come back only through that first Node, which would then depend on its own
descendant. (A -> B -> C with A -> C: C joins A's group only if B did.)

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from mpgrad.scheduler.graph_spec import GraphSpec

#: Nodes cheaper than this may be fused into their producer's task ...
FUSE_NODE_BELOW_US = 100.0
#: ... as long as what was fused so far stays under this: urgent work waits at most that long.
FUSE_GROUP_BELOW_US = 400.0


def group(spec: GraphSpec, *, fuse: bool) -> tuple[list[int], list[list[int]]]:
    """Assign each node to a group; groups and their nodes are in serial order."""
    producers: list[list[int]] = [[] for _ in spec.nodes]
    for index, node in enumerate(spec.nodes):
        for target in node.edges:
            if target is not None:
                producers[target[0]].append(index)
    seeded = {target[0] for target in spec.seeds}
    group_of = [-1] * len(spec.nodes)
    groups: list[list[int]] = []
    fused_us: list[float] = []
    for index in spec.order:
        node = spec.nodes[index]
        home = -1
        if fuse and index not in seeded and node.cost_us < FUSE_NODE_BELOW_US:
            home = _common_group(producers[index], group_of)
        if home >= 0 and (
            fused_us[home] + node.cost_us > FUSE_GROUP_BELOW_US
            or node.on_client
            or spec.nodes[groups[home][0]].on_client
        ):
            home = -1
        if home < 0:
            home = len(groups)
            groups.append([])
            fused_us.append(0.0)
        else:
            fused_us[home] += node.cost_us
        groups[home].append(index)
        group_of[index] = home
    return group_of, groups


def _common_group(producers: list[int], group_of: list[int]) -> int:
    """The group that all producers belong to, or -1."""
    home = group_of[producers[0]]
    for producer in producers:
        if group_of[producer] != home:
            return -1
    return home
