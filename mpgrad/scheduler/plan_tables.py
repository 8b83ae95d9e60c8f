"""The tables that ``plan()`` makes: the NodeTasks, and the Nodes inside each of them.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from mpgrad.scheduler.graph_spec import ON_CPU

#: The target of a seed: task, slot, place.
Seed: TypeAlias = tuple[int, int, int]

#: A serial position behind all Nodes: ``NodeTaskSpec.needed_from`` of a task that no other needs.
BEHIND_ALL = 1 << 62

#: The value of ``OutputSpec.task`` for a result that goes to the caller.
CAPTURE = -1


class OutputSpec(NamedTuple):
    """One gradient that leaves a NodeTask, and its one destination."""

    #: The bytes of the block it needs; 0 if it travels inside the message or stays on a GPU,
    #: whose worker allots the memory itself.
    nbytes: int
    #: Consumer: task, slot, and place among that slot's contributions (task CAPTURE: the result
    #: number ``slot``).
    task: int
    slot: int
    place: int


class NodeTaskSpec(NamedTuple):
    """What the coordinator knows about one NodeTask."""

    on_client: bool
    #: The length in microseconds of the longest path from here to the end: longer runs first.
    priority: float
    #: The serial position of the first Node: among equals, earlier runs first.
    position: int
    #: The number of arrivals to wait for: contributions and control edges.
    dependencies: int
    #: For each slot, the number of contributions that it sums (see ``Plan.slots``).
    places: tuple[int, ...]
    outputs: tuple[OutputSpec, ...]
    #: Tasks that may not start before this one is done, although no gradient flows.
    unlocks: tuple[int, ...] = ()
    #: True if a message costs more than the task.
    is_short: bool = False
    #: The serial positions of the other Nodes; they decide which of two errors is the first one.
    inner_positions: tuple[int, ...] = ()
    #: The number of times it publishes outputs before it ends.
    publications: int = 0
    #: Expected run time in microseconds.
    cost_us: int = 0
    #: The length in microseconds of the longest path behind its end. When it ends, nothing that
    #: it has made ready is more urgent.
    behind: float = 0.0
    #: The number of the GPU whose workers run it, or ON_CPU.
    device: int = ON_CPU
    #: The smallest serial position among this task and the tasks that depend on it. After an
    #: error, a task with a smaller value than the error's position still has to run.
    needed_from: int = BEHIND_ALL
    #: The slot of the CPU worker that has recorded a branch of the task; -1: none. A hint: another
    #: worker makes the branch again.
    near: int = -1
    #: The place of the task's program in the client's arena: offset and length in bytes.
    payload: tuple[int, int] = (0, 0)
    #: The program itself if it is short; else it is empty.
    program: bytes = b""

    def with_program(self, payload: tuple[int, int], program: bytes) -> NodeTaskSpec:
        """The same task in a backward that has this program for it."""
        return NodeTaskSpec(*self[:-2], payload, program)

    @property
    def is_for_cpu(self) -> bool:
        """Whether workers of the CPU run it."""
        return self.device == ON_CPU and not self.on_client

    @property
    def positions(self) -> tuple[int, ...]:
        """The serial positions of all its Nodes."""
        return (self.position, *self.inner_positions)


class InnerTarget(NamedTuple):
    """An input of a Node inside the same group."""

    member: int
    input_nr: int


class Member(NamedTuple):
    """One Node of a group: outputs stay inside, leave as task output ``int``, or are dropped."""

    node: int
    routes: tuple[InnerTarget | int | None, ...]
    #: (input number, task output): complete gradients that leave unchanged, for the caller or for
    #: the other half of the Node.
    captures: tuple[tuple[int, int], ...]
    #: Set in a piece of a wide sum, which runs no rule: slot 0 of the task is part of this input
    #: of the node, and the sum is passed on.
    piece_of: int | None = None
    #: True if another task runs the rule for the other outputs, or for other parts of this one.
    is_half: bool = False
    #: True if the task publishes its outputs so far before it runs this rule: other tasks wait
    #: for them, and the rule takes long.
    publishes: bool = False
    #: It computes only this half-open range of the parts of output 0; None: all of it.
    parts: tuple[int, int] | None = None


class Plan(NamedTuple):
    """The NodeTasks, the Nodes inside each of them (same index), and the targets of the seeds."""

    tasks: tuple[NodeTaskSpec, ...]
    groups: tuple[tuple[Member, ...], ...]
    #: For each task its slots: the inputs with contributions from outside. Contributions from
    #: inside the task are added after those.
    slots: tuple[tuple[InnerTarget, ...], ...]
    #: For each task the slots whose contributions are joined instead of added, and the number of
    #: parts of the gradient: contribution k of n is ``split.parts_of(k, n, parts)``.
    joins: tuple[tuple[tuple[int, int], ...], ...]
    #: The task of each node.
    task_of: tuple[int, ...]
    seeds: tuple[Seed, ...]
    #: True where the client should run task 0 before it submits the others.
    opens_alone: bool
    #: The task that the calling thread may run while the workers run theirs; -1: none. It needs
    #: nothing but seeds, and what task 0 gives if that opens alone. It comes first, or behind that.
    local_share: int
    #: The serial cost, and the cost of the longest path: a lower bound for any number of workers.
    work_us: float
    critical_path_us: float
