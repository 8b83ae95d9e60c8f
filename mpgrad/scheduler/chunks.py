"""chunk_ends(), in_chunks(): which of a plan's tasks each message of a submission carries.

Workers begin while the client still encodes. So the first messages carry the tasks that wait for
nothing, a few at a time, until there is one for each worker; later messages grow.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from mpgrad.scheduler.events import GraphExtended, GraphSubmitted
from mpgrad.scheduler.plan_tables import NodeTaskSpec, Plan

#: A graph of at most this many tasks goes in one message.
SMALL_GRAPH = 8
#: The number of messages after which each of many workers should have a task. Each later message is
#: half as long again as the one before. With two workers the messages are twice as long: the client
#: shares their cores and should send less often.
FIRST_MESSAGES = 2
#: The largest number of tasks in one message.
TASKS_PER_MESSAGE = 20_000


def chunk_ends(planned: Plan, workers: int, done: int) -> list[int]:
    """Where each message ends, as a number of tasks.

    Args:
        planned: the graph.
        workers: the number of workers that wait for it.
        done: the number of first tasks that the client runs; the first message carries their
            tables.
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
    *,
    goes_on: bool = False,
) -> Iterator[GraphSubmitted | GraphExtended]:
    """The messages of a submission, each made when it is asked for.

    ``submitted`` is the first one, without tasks. ``tables`` makes those of the tasks from one
    number to another; it is also told how many of them the client runs. ``goes_on`` says that
    another message will come: until then an earlier error than the known one may follow.
    """
    done = submitted.done
    is_whole = len(ends) == 1 and not goes_on
    yield submitted._replace(tasks=tables(0, ends[0], done), is_whole=is_whole)
    for start, end in pairwise(ends):
        is_whole = end == ends[-1] and not goes_on
        yield GraphExtended(submitted.peer, submitted.graph, tables(start, end, done), is_whole)


def _ready(planned: Plan, workers: int, done: int) -> int:
    """The number of tasks after ``done`` that wait for nothing else: between 1 and ``workers``."""
    arrived = Counter([task for task, _, _ in planned.seeds])
    for task in planned.tasks[:done]:
        arrived.update([output.task for output in task.outputs])
    end, last = done + 1, min(done + workers, len(planned.tasks))
    while end < last and planned.tasks[end].dependencies == arrived[end]:
        end += 1
    return end - done
