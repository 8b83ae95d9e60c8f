"""The tables that ``plan()`` makes: NodeTasks, and what each of them runs inside.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mpgrad.scheduler.graph_spec import ON_CPU

#: Where a seed flows: task, slot, place.
Seed: TypeAlias = tuple[int, int, int]

#: ``NodeTaskSpec.needed_from`` where no task in front needs it.
NOBODY = 1 << 62

#: ``OutputSpec.task`` of a result that goes to the caller.
CAPTURE = -1


class OutputSpec(NamedTuple):
    """One gradient that leaves a NodeTask, and the one place where it goes."""

    #: Bytes of the block it needs; 0 where it travels inside the message or stays on a GPU, whose
    #: worker finds the place itself.
    nbytes: int
    #: Consumer: task, slot, and place among that slot's contributions (task CAPTURE: the result
    #: number ``slot``).
    task: int
    slot: int
    place: int


class NodeTaskSpec(NamedTuple):
    """What the coordinator keeps of one NodeTask."""

    on_client: bool
    #: Length in microseconds of the longest path from here to the end: longer runs first.
    priority: float
    #: Serial position of the first Node: earlier runs first among equals.
    position: int
    #: Arrivals to wait for: contributions and control edges.
    dependencies: int
    #: For each slot, how many contributions it sums (see ``Plan.slots``).
    places: tuple[int, ...]
    outputs: tuple[OutputSpec, ...]
    #: Tasks that may not start before this one is done, though no gradient flows.
    unlocks: tuple[int, ...] = ()
    #: Where in the client's arena the task's program lies: offset and length in bytes.
    payload: tuple[int, int] = (0, 0)
    #: True where a message costs more than the task.
    is_short: bool = False
    #: Serial positions of the further Nodes: which of two errors is the first one.
    inner_positions: tuple[int, ...] = ()
    #: How often it publishes outputs before it ends.
    publications: int = 0
    #: Expected run time in microseconds.
    cost_us: int = 0
    #: Length in microseconds of the longest path behind its end: of all that it makes ready by
    #: then, nothing is more urgent.
    behind: float = 0.0
    #: Number of the GPU whose workers run it, or ON_CPU.
    device: int = ON_CPU
    #: The smallest serial position of a task that cannot begin without it: a bundle may have Nodes
    #: in front of what it waits for. What is needed in front of an error still runs after it.
    needed_from: int = NOBODY

    @property
    def is_for_cpu(self) -> bool:
        """Whether workers of the CPU run it."""
        return self.device == ON_CPU and not self.on_client


class InnerTarget(NamedTuple):
    """An input of a Node inside its group."""

    member: int
    input_nr: int


class Member(NamedTuple):
    """One Node of a group: its outputs stay inside, leave as task output ``int``, or are lost."""

    node: int
    routes: tuple[InnerTarget | int | None, ...]
    #: (input number, task output): complete gradients that leave as they are: the caller wants
    #: them, or the other half of the Node.
    captures: tuple[tuple[int, int], ...]
    #: Set in a piece of a wide sum, which runs no rule: slot 0 of the task is part of this input
    #: of the node, and is passed on.
    piece_of: int | None = None
    #: True where another task runs the rule for the other outputs, or other parts of the same.
    is_half: bool = False
    #: True where the task, before it runs this rule, tells the coordinator what has left it so far:
    #: others wait for that, and the rule takes long.
    publishes: bool = False
    #: Of output 0 only these parts, from the first to before the second; None: all of it.
    parts: tuple[int, int] | None = None


class Plan(NamedTuple):
    """NodeTasks, what each runs inside (same index), and where the seeds flow."""

    tasks: tuple[NodeTaskSpec, ...]
    groups: tuple[tuple[Member, ...], ...]
    #: For each task its slots: the inputs that get something from outside. Contributions from
    #: inside, if there are any, are added behind those.
    slots: tuple[tuple[InnerTarget, ...], ...]
    #: For each task those of its slots whose contributions are not added but joined, and how many
    #: parts the gradient has: contribution k of n is ``split.parts_of(k, n, parts)``.
    joins: tuple[tuple[tuple[int, int], ...], ...]
    #: For each node its task.
    task_of: tuple[int, ...]
    seeds: tuple[Seed, ...]
    #: True where the client should run task 0 before it submits the others.
    opens_alone: bool
    #: Serial cost, cost of the longest path: what any number of workers cannot beat.
    work_us: float
    critical_path_us: float
