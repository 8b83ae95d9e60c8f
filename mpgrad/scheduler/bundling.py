"""bundle(): groups of Nodes that have no path between them share a task, to save messages.

``fusion`` follows the edges and leaves each branch behind a fork as a group of its own. A thousand
tiny branches would need a thousand messages. So this file merges the groups of one *level* into as
few tasks as still keep all workers of a device busy. The level of a group is the number of groups
on the longest path that leads to it, so that no path joins two groups of the same level.

The graph of bundles cannot have a cycle. A bundle begins with groups of one level; a group that
joins it later gets all its contributions from it. So an edge between two bundles ends in a group
that the second bundle began with. The level of that group is above the level of the edge's start,
and hence above the level at which the first bundle began: levels rise along every path. The control
edges between the client's tasks count as edges.

The sums keep the order of the serial engine: the Nodes of a bundle run in serial order, and what an
input gets from outside the bundle comes first in that order, too. (Seeds are outside.)

The calling thread may take part as one of the workers. It begins while the others' work is on its
way, so its bundle is longer by the time of the messages.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler import tuning
from mpgrad.scheduler.fusion import Grouping
from mpgrad.scheduler.graph_spec import ON_CPU, GraphSpec

#: The value of a bundle that no device's groups may join: the client's bundles are not merged.
NOBODY = -2


def bundle(
    spec: GraphSpec,
    grouping: Grouping,
    *,
    client_takes_part: bool = False,
    together: Sequence[int] = (),
) -> tuple[list[int], list[list[int]], int]:
    """Merge the groups of ``grouping``.

    Args:
        spec: the graph.
        grouping: the groups that ``fusion`` made, and the number of workers: as many bundles of a
            level should be able to run at once.
        client_takes_part: one bundle may be the calling thread's.
        together: see ``plan``.

    Returns:
        For each node its bundle, and for each bundle its nodes in serial order. Bundles are in a
        topological order, those of the client in serial order. And the calling thread's; -1: none.
    """
    bundling = _Bundling(spec, grouping, together, client_takes_part=client_takes_part)
    for level in bundling.levels():
        bundling.place(level)
    return bundling.result()


def bundle_limit_us(chain_us: float, workers: int, worth_us: float) -> float:
    """The longest time of a bundle, given that of a chain (``chain_us``).

    Bundles of a level cost about the same, so two workers finish at about the same time. With more
    of them, a long bundle leaves too many idle at the end.
    """
    if workers <= 2:
        return tuning.TASK_MAX_US
    return min(max(chain_us, tuning.WORTH_MESSAGES * worth_us), tuning.TASK_MAX_US)


class _Bundling:
    """The bundles so far, while the groups are visited level by level."""

    def __init__(
        self,
        spec: GraphSpec,
        grouping: Grouping,
        together: Sequence[int],
        *,
        client_takes_part: bool,
    ) -> None:
        self._spec, self._workers = spec, grouping.workers
        self._client_takes_part = client_takes_part
        self._messages_us = tuning.BACKWARD_MESSAGES * grouping.message_us
        #: The bundle of the calling thread; -1: none.
        self._local_share = -1
        self._group_of, self._groups = grouping.group_of, grouping.groups
        self._worth_us = tuning.worth_us(grouping.message_us)
        #: Per device: the time limits of a chain and of a bundle.
        self._chain_us = grouping.chain_limit_us
        self._limit_us = {
            device: bundle_limit_us(self._chain_us[device], count, self._worth_us)
            for device, count in self._workers.items()
        }
        heads = [nodes[0] for nodes in self._groups]
        #: Per group: the groups that feed it. Its other Nodes get nothing from any further group.
        self._feeds = [
            list(dict.fromkeys(self._group_of[p] for p in grouping.producers[head]))
            for head in heads
        ]
        self._costs = [
            total + self._sums_us(head, len(grouping.producers[head]))
            for total, head in zip(grouping.total_us, heads, strict=True)
        ]
        self._on_client = [spec.nodes[head].on_client for head in heads]
        self._stands_alone = [
            on_client
            or nodes[0] in grouping.second
            or any(spec.nodes[at].is_branch for at in nodes)
            for on_client, nodes in zip(self._on_client, self._groups, strict=True)
        ]
        #: Per group: the task that has recorded the branch in it, -1: none has.
        self._recorded_by = [
            max([together[at] for at in nodes if at < len(together)], default=-1)
            for nodes in self._groups
        ]
        self._device = [spec.nodes[head].device for head in heads]
        position = {node: at for at, node in enumerate(spec.order)}
        #: Per group: the serial position of the last Node that it waits for.
        self._begins_after = [
            max([position[node] for node in grouping.producers[head]], default=-1) for head in heads
        ]
        #: Per group: the number of groups it feeds, and the longest path that begins with it.
        self._fed = [0] * len(heads)
        self._path_us = self._costs.copy()
        for group in range(len(heads) - 1, -1, -1):
            for feed in self._feeds[group]:
                self._fed[feed] += 1
                path_us = self._costs[feed] + self._path_us[group]
                self._path_us[feed] = max(self._path_us[feed], path_us)
        #: Per group: its bundle.
        self._home = [-1] * len(heads)
        #: Per bundle: its work, the work that joined because it was cheaper than a message, the
        #: number of edges to groups outside, and the device whose groups may join (or NOBODY).
        self._total_us: list[float] = []
        self._joined_us: list[float] = []
        self._waiting: list[int] = []
        self._open_to: list[int] = []

    def _sums_us(self, head: int, contributions: int) -> float:
        nbytes = self._spec.nodes[head].input_nbytes
        return max(contributions - len(nbytes), 0) * max(nbytes, default=0) / tuning.BYTES_PER_US

    def levels(self) -> list[list[int]]:
        """The groups by level; groups are numbered in a topological order."""
        client = [group for group, on_client in enumerate(self._on_client) if on_client]
        before = {later: earlier for earlier, later in pairwise(client)}
        level = [0] * len(self._groups)
        found: list[list[int]] = []
        for group, feeds in enumerate(self._feeds):
            above = [level[feed] for feed in feeds]
            if group in before:
                above.append(level[before[group]])
            level[group] = at = max(above) + 1 if above else 0
            if at == len(found):
                found.append([])
            found[at].append(group)
        return found

    def place(self, level: Sequence[int]) -> None:
        """Assign the groups of the next level to bundles."""
        for device in self._workers:
            self._place([group for group in level if self._device[group] == device], device)

    def _place(self, level: Sequence[int], device: int) -> None:
        """Assign the groups of one device."""
        level_us = sum([self._costs[group] for group in level])
        at_once = self._count_worth_it(level_us, device, self._workers[device])
        behind: dict[int, list[int]] = {}
        recorded: dict[int, list[int]] = {}
        apart: list[int] = []
        for group in level:
            home = self._only_home(self._feeds[group], device)
            if self._stands_alone[group] and self._recorded_by[group] >= 0:
                recorded.setdefault(self._recorded_by[group], []).append(group)
            elif self._stands_alone[group]:
                self._open([group])
            elif home >= 0:
                behind.setdefault(home, []).append(group)
            else:
                apart.append(group)
        for groups in recorded.values():
            self._open_in_parts(groups)
        for home, groups in behind.items():
            if self._continues(home, groups, level_us / at_once):
                self._join(home, groups)
            else:
                apart += groups
        workers = self._workers[device]
        if local_share := self._local_share_of(apart, device):
            apart = sorted(set(apart).difference(local_share))
            workers -= 1
            self._local_share = len(self._total_us)
            self._open(local_share)
        parts = self._parts(apart, device, workers)
        # The client submits tasks in this order, so the most urgent ones come first.
        parts.sort(key=lambda groups: -max([self._path_us[group] for group in groups]))
        for groups in parts:
            feeds = [feed for group in groups for feed in self._feeds[group]]
            home = self._only_home(feeds, device)
            cost = self._cost(groups)
            is_alone = len(parts) == 1 and not local_share
            if home >= 0 and is_alone and self._joined_us[home] + cost < self._worth_us:
                self._joined_us[home] += cost
                self._join(home, groups)
            else:
                self._open(groups)

    def _count_worth_it(self, work_us: float, device: int, most: int) -> int:
        """The number of tasks to cut ``work_us`` of a device into, at most ``most``.

        The time of a Node on a GPU is unknown, because its worker does not wait for the kernels:
        branches that could overlap are shared by all workers of the GPU.
        """
        least = 1 if device == ON_CPU else self._workers[device]
        return max(least, min(int(work_us // self._worth_us), most))

    def _only_home(self, feeds: Sequence[int], device: int) -> int:
        """The bundle that contains all of ``feeds``, if groups of ``device`` may join it; or -1."""
        if not feeds:
            return -1
        home = self._home[feeds[0]]
        if self._open_to[home] != device or any(self._home[feed] != home for feed in feeds):
            return -1
        return home

    def _cost(self, groups: Sequence[int]) -> float:
        return sum([self._costs[group] for group in groups])

    def _continues(self, home: int, groups: Sequence[int], share_us: float) -> bool:
        """Whether ``groups``, all fed by bundle ``home`` alone, are its next link.

        No other group may wait for the bundle. Several groups join only if they cost no more than
        one worker's share of the level.
        """
        cost = self._cost(groups)
        return (
            self._waiting[home] == sum([len(self._feeds[group]) for group in groups])
            and self._total_us[home] + cost <= self._chain_us[self._device[groups[0]]]
            and (len(groups) == 1 or cost <= share_us)
        )

    def _local_share_of(self, groups: Sequence[int], device: int) -> list[int]:
        """The part of the calling thread: as long as a worker's, and the messages that bring that.

        It is the first in serial order. None: if the client does not have all that it needs before
        the others begin (``Plan.local_share``), or if messages are short beside the work anyway.
        """
        work_us = self._cost(groups) - self._messages_us
        count = self._count_worth_it(max(work_us, 0.0), device, self._workers[device])
        share_us = work_us / count
        if count < 2 or share_us > tuning.TASK_MAX_US or not self._is_at_hand(groups, device):
            return []
        part, left_us = list[int](), share_us + self._messages_us
        for group in sorted(groups, key=self._place_of):
            if self._costs[group] / 2 > left_us:
                break
            part.append(group)
            left_us -= self._costs[group]
        return part if len(part) < len(groups) else []

    def _is_at_hand(self, groups: Sequence[int], device: int) -> bool:
        """Whether ``groups`` are whole Nodes that need nothing but seeds, or what a first bundle
        gives that the client runs ahead (``Plan.opens_alone``)."""
        nodes = self._spec.nodes
        if not self._client_takes_part or self._local_share >= 0 or device != ON_CPU:
            return False
        if any(nodes[at].passes or nodes[at].parts for g in groups for at in self._groups[g]):
            return False
        if not any(self._feeds[group] for group in groups):
            return not self._total_us
        heads = [nodes[self._groups[group][0]] for group in groups]
        are_small = all(max(head.input_nbytes) <= INLINE_LIMIT_BYTES for head in heads)
        return are_small and len(self._total_us) == 1 and self._total_us[0] <= self._messages_us

    def _parts(self, groups: list[int], device: int, workers: int) -> list[list[int]]:
        """Divide ``groups`` into parts of about equal cost, as many as are worth their messages.

        Groups that the same bundle feeds stay together.
        """
        limit_us = self._limit_us[device]
        parts = [[group] for group in groups if self._costs[group] > limit_us / 2]
        small = [group for group in groups if self._costs[group] <= limit_us / 2]
        work_us = self._cost(small)
        rounds = math.ceil(work_us / max(workers * limit_us, 1.0))
        if rounds == workers == 2:
            # A second bundle would be prefetched with the first and balance nothing, so bundles
            # may take up to twice the limit.
            rounds = 1
        count = self._count_worth_it(work_us, device, workers * rounds)
        if count >= len(small):
            return parts + [[group] for group in small]
        small.sort(key=self._place_of)
        shared: list[list[int]] = [[] for _ in range(count)]
        done_us = 0.0
        for group in small:
            middle_us = done_us + self._costs[group] / 2
            at = int(middle_us * count / work_us) if count > 1 else 0
            shared[min(at, count - 1)].append(group)
            done_us += self._costs[group]
        return parts + [part for part in shared if part]

    def _place_of(self, group: int) -> tuple[int, int, int]:
        """Sort key: branches of one bundle that can begin at about the same time are together."""
        feeds = self._feeds[group]
        return self._home[feeds[-1]] if feeds else -1, self._begins_after[group], group

    def _open(self, groups: Sequence[int]) -> None:
        """Begin a bundle with ``groups``."""
        first = groups[0]
        self._open_to.append(NOBODY if self._on_client[first] else self._device[first])
        self._total_us.append(0.0)
        self._joined_us.append(0.0)
        self._waiting.append(0)
        self._put(len(self._total_us) - 1, groups)

    def _open_in_parts(self, groups: Sequence[int]) -> None:
        """Begin bundles with ``groups``, none above the longest time of a task."""
        part, part_us = list[int](), 0.0
        for group in groups:
            if part and part_us + self._costs[group] > tuning.TASK_MAX_US:
                self._open(part)
                part, part_us = [], 0.0
            part.append(group)
            part_us += self._costs[group]
        self._open(part)

    def _join(self, home: int, groups: Sequence[int]) -> None:
        self._waiting[home] -= sum([len(self._feeds[group]) for group in groups])
        self._put(home, groups)

    def _put(self, home: int, groups: Sequence[int]) -> None:
        for group in groups:
            self._home[group] = home
            self._waiting[home] += self._fed[group]
        self._total_us[home] += self._cost(groups)

    def result(self) -> tuple[list[int], list[list[int]], int]:
        """See :func:`bundle`. Bundles begin level by level, which is a topological order."""
        bundle_of = [self._home[group] for group in self._group_of]
        bundles: list[list[int]] = [[] for _ in self._total_us]
        for node in self._spec.order:
            bundles[bundle_of[node]].append(node)
        return bundle_of, bundles, self._local_share
