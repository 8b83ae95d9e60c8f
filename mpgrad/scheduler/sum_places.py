"""SumPlaces: gives each contribution to a gradient its place, whichever task it comes from.

A wide sum is taken in pieces: an input with very many contributions is added up as they arrive.
Otherwise the input would hold all of them until the last one has arrived: a weight used a thousand
times would need the memory of a thousand gradients. The pieces form a chain, each of which starts
with the sum of the piece before, so the additions, their order and the bits are the same.

Rules of this file: pure tables, as in ``graph_spec``.
"""

from __future__ import annotations

from typing import NamedTuple

from mpgrad.base.handles import INLINE_LIMIT_BYTES
from mpgrad.scheduler import tuning
from mpgrad.scheduler.graph_spec import GraphSpec, Target
from mpgrad.scheduler.plan_tables import CAPTURE, InnerTarget, Member, OutputSpec


class SumPlaces:
    """Places for every contribution, in the order in which the serial engine would add them.

    It walks the producers in serial order, and their outputs in turn, and so gives out the places
    of each input in exactly that order. This makes the sum independent of the order of arrival.
    """

    def __init__(self, spec: GraphSpec, group_of: list[int], groups: list[list[int]]) -> None:
        self._spec, self._group_of = spec, group_of
        self.places: list[list[int]] = [[] for _ in groups]
        self.slots: list[list[InnerTarget]] = [[] for _ in groups]
        self.joins: list[set[tuple[int, int]]] = [set() for _ in groups]
        self._slot_of: dict[Target, int] = {}
        self.outputs: list[list[OutputSpec]] = [[] for _ in groups]
        self.members: list[list[Member]] = [[] for _ in groups]
        #: Per node the captured inputs: (input number, result number).
        self._captures: dict[int, list[tuple[int, int]]] = {}
        for number, (node, input_nr) in enumerate(spec.captures):
            self._captures.setdefault(node, []).append((input_nr, number))
        self._bypassed = self._find_bypassed()
        #: The index of each node among the members of its group.
        self._member = {
            node: at
            for nodes in groups
            for at, node in enumerate(n for n in nodes if n not in self._bypassed)
        }
        self.seeds = tuple(self._contribution(target) for target in spec.seeds)
        for node in spec.order:
            if node not in self._bypassed:
                self._wire(node, self._captures.get(node, []))

    def split_wide_sums(self) -> list[tuple[int, int, Piece]]:
        """Divide sums with very many contributions among additional tasks.

        Returns:
            For each new task: the group of its input, the bytes of the input, and the piece.
        """
        split: dict[tuple[int, int], WideSum] = {}
        added: list[tuple[int, int, Piece]] = []
        for (node, input_nr), slot in self._slot_of.items():
            if self._spec.nodes[node].is_on_device(input_nr):
                continue  # gradients on a GPU take no memory of the arena
            task, nbytes = self._group_of[node], self._spec.nodes[node].input_nbytes[input_nr]
            count = self.places[task][slot]
            width = width_for(nbytes, count)
            if width is not None:
                wide = WideSum((task, slot), count, width, len(self.members))
                split[task, slot] = wide
                self.places[task][slot] = wide.places_left
                member = Member(node, (), ((0, 0),), piece_of=input_nr)
                self.members += [[member] for _ in wide.pieces]
                self.slots += [[InnerTarget(0, 0)] for _ in wide.pieces]
                self.joins += [set() for _ in wide.pieces]
                added += [(task, nbytes, piece) for piece in wide.pieces]
        if split:
            self._redirect(split)
        return added

    def _redirect(self, split: dict[tuple[int, int], WideSum]) -> None:
        for outputs in self.outputs:
            for at, (nbytes, task, slot, place) in enumerate(outputs):
                if (task, slot) in split:
                    outputs[at] = OutputSpec(nbytes, *split[task, slot].redirect(place))
        self.seeds = tuple(
            split[task, slot].redirect(place) if (task, slot) in split else (task, slot, place)
            for task, slot, place in self.seeds
        )

    def _find_bypassed(self) -> dict[int, int]:
        """Sinks that one producer of their own group fills: node -> result number.

        The producer's output leaves the task directly, so that it is written into its block.
        """
        contributions = [0] * len(self._spec.nodes)
        producer = [-1] * len(self._spec.nodes)
        for index, node in enumerate(self._spec.nodes):
            for target in node.edges:
                if target is not None:
                    contributions[target[0]] += 1
                    producer[target[0]] = index
        for seeded, _ in self._spec.seeds:
            contributions[seeded] += 1
        return {
            node: captured[0][1]
            for node, captured in self._captures.items()
            if self._spec.nodes[node].is_sink
            and len(self._spec.nodes[node].input_nbytes) == 1
            and len(captured) == 1
            and contributions[node] == 1
            and producer[node] >= 0
            and self._group_of[producer[node]] == self._group_of[node]
        }

    def _contribution(self, target: tuple[int, int]) -> tuple[int, int, int]:
        group = self._group_of[target[0]]
        places = self.places[group]
        slot = self._slot_of.get(target)
        if slot is None:
            slot = self._slot_of[target] = len(places)
            places.append(0)
            self.slots[group].append(InnerTarget(self._member[target[0]], target[1]))
        places[slot] += 1
        return group, slot, places[slot] - 1

    def _leaves(
        self,
        group: int,
        target: tuple[int, int],
        where: tuple[int, int, int],
        nbytes: int | None = None,
    ) -> int:
        if nbytes is None:
            nbytes = self._spec.nodes[target[0]].input_nbytes[target[1]]
        is_on_device = self._spec.nodes[target[0]].is_on_device(target[1])
        block = nbytes if nbytes > INLINE_LIMIT_BYTES and not is_on_device else 0
        self.outputs[group].append(OutputSpec(block, *where))
        return len(self.outputs[group]) - 1

    def _wire(self, node: int, captures: list[tuple[int, int]]) -> None:
        group, spec, group_of = self._group_of[node], self._spec.nodes[node], self._group_of
        captured = [
            (input_nr, self._leaves(group, (node, input_nr), (CAPTURE, number, 0)))
            for input_nr, number in captures
        ]
        for other in spec.passes:
            for input_nr in range(len(spec.input_nbytes)):
                target = other, input_nr
                captured.append((input_nr, self._leaves(group, target, self._contribution(target))))
        routes: list[InnerTarget | int | None] = []
        for edge in spec.edges:
            if edge is None:
                routes.append(None)
            elif edge[0] in self._bypassed:
                routes.append(self._leaves(group, edge, (CAPTURE, self._bypassed[edge[0]], 0)))
            elif spec.parts is not None:
                where = self._contribution(edge)
                self.joins[where[0]].add((where[1], len(spec.part_nbytes)))
                nbytes = sum(spec.part_nbytes[slice(*spec.parts)])
                routes.append(self._leaves(group, edge, where, nbytes))
            elif group_of[edge[0]] == group:
                routes.append(InnerTarget(self._member[edge[0]], edge[1]))
            else:
                routes.append(self._leaves(group, edge, self._contribution(edge)))
        self.members[group].append(Member(node, tuple(routes), tuple(captured), parts=spec.parts))


# ---------------------------------------------------------------------- wide sums

#: The number of contributions that one task adds: few large ones, so that memory is released soon
#: and the work is spread; many small ones, because each task costs a message.
WIDTH_LARGE, WIDTH_SMALL = 8, 64
LARGE_BYTES = 64 * 1024


class Piece(NamedTuple):
    """A task that adds part of an input: the number of contributions, and where the sum goes."""

    task: int
    places: int
    #: The consumer: task and slot; the place is always 0.
    consumer: tuple[int, int]


def piece_us(piece: Piece, nbytes: int) -> float:
    """The expected time from the last contribution of ``piece`` to the start of its consumer."""
    return tuning.MESSAGE_US + piece.places * nbytes / tuning.BYTES_PER_US


class WideSum:
    """How the contributions to one input are divided among a chain of pieces."""

    def __init__(self, consumer: tuple[int, int], count: int, width: int, first_task: int) -> None:
        self._consumer, self._width = consumer, width
        chained = (count - width - 1) // (width - 1) + 1
        tasks = [first_task + at for at in range(chained)]
        ends = [*((task, 0) for task in tasks[1:]), consumer]
        self.pieces = [Piece(task, width, end) for task, end in zip(tasks, ends, strict=True)]
        #: The contributions left for the consumer: the last piece's sum and the last contributions.
        self.places_left = 1 + count - width - (chained - 1) * (width - 1)

    def redirect(self, place: int) -> tuple[int, int, int]:
        """The new target of contribution number ``place``: task, slot, place."""
        if place < self._width:
            return self.pieces[0].task, 0, place
        at, rest = divmod(place - self._width, self._width - 1)
        if at + 1 < len(self.pieces):
            return self.pieces[at + 1].task, 0, rest + 1
        return *self._consumer, rest + 1


def width_for(nbytes: int, count: int) -> int | None:
    """Contributions per piece for an input of ``nbytes``; None if it needs no pieces."""
    if nbytes <= INLINE_LIMIT_BYTES:
        return None
    width = WIDTH_LARGE if nbytes >= LARGE_BYTES else WIDTH_SMALL
    return width if count > width else None
