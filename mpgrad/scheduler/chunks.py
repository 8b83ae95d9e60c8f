"""chunk_ends(), in_chunks(): which of a plan's tasks each message of a submission carries.

Workers begin while the client still packs. So first go the tasks that wait for nothing, a few at a
time until there is one for each worker, then ever more.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from mpgrad.scheduler.events import GraphExtended, GraphSubmitted
from mpgrad.scheduler.plan_tables import NodeTaskSpec, Plan

#: Graphs of at most this many tasks go in one message.
SMALL_GRAPH = 8
#: In about so many messages each of many workers gets its first task: packing all of them took
#: 3.5 ms for 16 workers, while none of them had begun. Each later message is half as long again:
#: packing twice as much took so long that workers ran out of tasks (``scripts/simulate``, mixture
#: and simulators on 4 to 32 workers: 89.0 instead of 87.5 % of the bound on average). Two workers
#: share their cores with the client, which should not send so often: twice as long.
FIRST_MESSAGES = 2
#: Tables of NodeTasks in one message; larger graphs go in several.
TASKS_PER_MESSAGE = 20_000


def chunk_ends(planned: Plan, workers: int, done: int) -> list[int]:
    """Where each message ends, as a number of tasks.

    Args:
        planned: the graph.
        workers: how many wait for it.
        done: so many tasks have run already; the first message carries their tables, too.
    """
    count = len(planned.tasks)
    if count <= SMALL_GRAPH:
        return [count]
    few = min(max(2, workers // FIRST_MESSAGES), TASKS_PER_MESSAGE)
    ends, size = [done + min(_ready(planned, workers, done), few)], few
    while ends[-1] < count:
        if ends[-1] >= done + workers:
            size = min(2 * size if workers <= 2 else size + size // 2, TASKS_PER_MESSAGE)
        ends.append(min(ends[-1] + size, count))
    return ends


def in_chunks(
    submitted: GraphSubmitted,
    ends: list[int],
    tables: Callable[[int, int, int], tuple[NodeTaskSpec, ...]],
) -> Iterator[GraphSubmitted | GraphExtended]:
    """The messages of a submission, each made when it is asked for.

    ``submitted`` is the first one, without tasks. ``tables`` makes those of the tasks from one
    number to another; it is also told how many of them have run already.
    """
    done = submitted.done
    yield submitted._replace(tasks=tables(0, ends[0], done), is_whole=len(ends) == 1)
    for start, end in pairwise(ends):
        is_whole = end == ends[-1]
        yield GraphExtended(submitted.peer, submitted.graph, tables(start, end, done), is_whole)


def _ready(planned: Plan, workers: int, done: int) -> int:
    """How many tasks behind ``done`` wait for nothing else: at least 1, at most `workers`."""
    arrived = Counter([task for task, _, _ in planned.seeds])
    for task in planned.tasks[:done]:
        arrived.update([output.task for output in task.outputs])
    end, last = done + 1, min(done + workers, len(planned.tasks))
    while end < last and planned.tasks[end].dependencies == arrived[end]:
        end += 1
    return end - done
