"""HostStarts: which hosts have started, which of them fit, and when the engine may begin."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import inf

from mpgrad.base.standard_streams import say
from mpgrad.engine.cluster.host_contract import Greeting
from mpgrad.engine.cluster.host_in_use import HostInUse
from mpgrad.errors import MpgradError

#: How often in a row a host may fail to start, and seconds after which it may do so once more.
STARTS_MAX, PAUSE_S = 3, 30.0
#: The characters that are shown of why a host is lost: Ray says much.
LINE_MAX = 160


class HostStarts:
    """The starts of hosts.

    Args:
        mine: what this process would tell of itself.
        same_arithmetic: leave out hosts that differ.

    Attributes:
        done: the engine may begin, or cannot.
        waits: whether hosts of the beginning have not answered.
        others: hosts that take part, and may round otherwise.
    """

    def __init__(self, mine: Greeting, same_arithmetic: bool) -> None:
        self._mine, self._same_arithmetic = mine, same_arithmetic
        self._starting: set[int] = set()
        self._problems: list[str] = []
        self._left_out: list[str] = []
        self.others: list[str] = []
        #: The starts that have failed, by node.
        self._failures: Counter[str] = Counter()
        self.done: Future[None] = Future()

    @property
    def waits(self) -> bool:
        return bool(self._starting)

    def begin(self, host: HostInUse) -> None:
        """A host starts."""
        if not self.done.done():
            self._starting.add(host.number)

    def end(self, host: HostInUse, result: Callable[[], Greeting]) -> bool:
        """It has started, or has not; whether it takes part."""
        name, node = host.remote.name, host.remote.node
        fails, pause_s = STARTS_MAX, inf
        try:
            greeting = Greeting(*result())
        except Exception as error:
            self._failures[node] = fails = self._failures[node] + 1
            pause_s = PAUSE_S if fails >= STARTS_MAX else 0.0
            problem, rounds = line_of(error), ""
        else:
            host.workers = greeting.workers
            problem = _difference(self._mine.versions, greeting.versions)
            rounds = _difference(self._mine.arithmetic, greeting.arithmetic)
        self._starting.discard(host.number)
        if problem or (rounds and self._same_arithmetic):
            host.remote.kill(pause_s)
            if fails == STARTS_MAX:
                self._refuse(name, problem, rounds)
            return False
        self._failures.pop(node, None)
        if rounds:
            self.others.append(f"{name}: {rounds}")
            if self.done.done():
                say(others_text(self.others[-1:]))
        return True

    def _refuse(self, name: str, problem: str, rounds: str) -> None:
        """A host will not take part."""
        text = f"{name}: {', '.join(filter(None, [problem, rounds]))}"
        if self._same_arithmetic:
            say(f"a host is left out: {text}")
            self._left_out.append(text)
        elif self.done.done():
            say(f"a host cannot take part: {text}")
        else:
            self._problems.append(text)

    def settle(self, *, waits: bool, has_workers: bool) -> None:
        """Begin with the hosts that have started; ``waits`` for those that have not."""
        if waits or self.done.done():
            return
        if self._left_out and not self._starting and not has_workers:
            self._problems = self._left_out
        if self._problems:
            self.done.set_exception(_unfit(self._problems))
        elif has_workers:
            self.done.set_result(None)


def others_text(hosts: Sequence[str]) -> str:
    """What is said of hosts that may round otherwise."""
    return (
        "hosts of the cluster may give other bits than this process; "
        f"Engine(same_arithmetic=True) leaves them out: {'; '.join(sorted(hosts))}"
    )


def _difference(mine: dict[str, str], others: dict[str, str]) -> str:
    return ", ".join(
        f"{what} {others.get(what, 'missing')} (here {here})"
        for what, here in mine.items()
        if others.get(what) != here
    )


def line_of(error: BaseException) -> str:
    """An error in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return textwrap.shorten(f"{type(error).__name__}: {lines[-1] if lines else ''}", LINE_MAX)


def _unfit(problems: Sequence[str]) -> MpgradError:
    return MpgradError(
        "hosts of the cluster cannot take part, because results would differ or fail there:\n  "
        + "\n  ".join(sorted(problems))
        + "\nInstall the same versions there, or leave the hosts out of the cluster"
    )
