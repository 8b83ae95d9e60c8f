"""Marking: which tensors of which messages will get a gradient, before the first one is sent.

A wave of questions runs from the roots of a backward over the hosts that they reach: "these slots
of these messages of yours will get gradients". Each host walks on in its own graph. The end is
known by counting answers (Dijkstra and Scholten): a host answers the question that engaged it once
all its own questions are answered, and every other one at once. What it would ask the host that it
answers goes along with the answer: most calls return to where they came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

#: (message, its tensor): what may get a gradient on the host that sent the message.
Slot: TypeAlias = tuple[int, int]
#: The slots of one question or answer: a message has a limit.
SLOTS_MAX = 20_000

#: What a walk has newly reached, by the rank that sent the message.
Reached: TypeAlias = Mapping[int, Sequence[Slot]]


class AskHost(NamedTuple):
    """Ask ``to``: these slots of its messages will get gradients, and what follows from that?"""

    to: int
    question: int
    slots: tuple[Slot, ...]


class AnswerHost(NamedTuple):
    """Tell ``to`` that all is marked that its question leads to, and which hosts that are."""

    to: int
    question: int
    hosts: tuple[int, ...]
    #: Slots of messages of ``to`` that will get gradients, too.
    slots: tuple[Slot, ...]


class Marking:
    """One host's part in the wave of one backward.

    Args:
        is_root: the wave begins here.
    """

    def __init__(self, *, is_root: bool) -> None:
        self._is_root = is_root
        #: The question that is answered last, and who asked it.
        self._engaged_by: tuple[int, int] | None = None
        self._seen: set[tuple[int, int]] = set()
        self._unanswered: set[int] = set()
        self._asked = 0
        #: The hosts that the wave has reached from here, in the order in which they were found.
        self.hosts: dict[int, None] = {}

    @property
    def is_over(self) -> bool:
        """At the root, once it has begun: whether all marks of all hosts are final."""
        return self._is_root and not self._unanswered

    def begin(self, reached: Reached) -> list[AskHost]:
        """At the root: what its roots have reached."""
        return self._ask(reached)

    def take_question(
        self, sender: int, question: int, reached: Reached
    ) -> list[AskHost | AnswerHost]:
        """A question that came, and what the walk from there has newly reached."""
        if (sender, question) in self._seen:
            return []
        self._seen.add((sender, question))
        if self._is_root or self._engaged_by is not None:
            others, back = _apart(reached, sender)
            return [*self._ask(others), AnswerHost(sender, question, (), back)]
        self._engaged_by = sender, question
        return self._go_on(reached)

    def take_answer(
        self, question: int, hosts: Sequence[int], reached: Reached
    ) -> list[AskHost | AnswerHost]:
        """An answer that came, and what the walk from its slots has newly reached."""
        if question not in self._unanswered:
            return []
        self._unanswered.discard(question)
        self.hosts.update(dict.fromkeys(hosts))
        return self._go_on(reached)

    def _go_on(self, reached: Reached) -> list[AskHost | AnswerHost]:
        """Ask on; if there is nobody to ask, answer the question that is answered last."""
        if self._engaged_by is None:
            return [*self._ask(reached)]
        to, question = self._engaged_by
        others, back = _apart(reached, to)
        if others or self._unanswered:
            return [*self._ask(reached)]
        self._engaged_by = None
        return [AnswerHost(to, question, tuple(self.hosts), back)]

    def _ask(self, reached: Reached) -> list[AskHost]:
        asks = []
        for to, slots in reached.items():
            self.hosts[to] = None
            for at in range(0, len(slots), SLOTS_MAX):
                self._unanswered.add(self._asked)
                asks.append(AskHost(to, self._asked, tuple(slots[at : at + SLOTS_MAX])))
                self._asked += 1
        return asks


def _apart(reached: Reached, host: int) -> tuple[Reached, tuple[Slot, ...]]:
    """What the other hosts are asked, and what an answer takes along to ``host``."""
    back = tuple(reached.get(host, ()))
    if len(back) > SLOTS_MAX:
        return reached, ()
    return {to: slots for to, slots in reached.items() if to != host}, back
