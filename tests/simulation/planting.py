"""Plants: bugs that are put into the core, one at a time, and the worlds that must notice them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from simulation import World, WorldFailure

#: What a mistake in a planted bug itself would raise.
MISTAKES = (TypeError, NameError, AttributeError)

Plant = Callable[[pytest.MonkeyPatch], None]


class Plants:
    """The bugs of one file, by name.

    Args:
        worlds: those of a seed.
        seeds: how many seeds are tried at most.
    """

    def __init__(self, worlds: Callable[[int], Iterable[World]], seeds: int = 2000) -> None:
        self._worlds, self._seeds = worlds, seeds
        self.by_name: dict[str, Plant] = {}
        self._rare: set[str] = set()

    def bug(self, plant: Plant) -> Plant:
        self.by_name[plant.__name__] = plant
        return plant

    def rare_bug(self, plant: Plant) -> Plant:
        """One that strikes so seldom that it takes more than sixty seeds to find it."""
        self._rare.add(plant.__name__)
        return self.bug(plant)

    def names(self) -> list[Any]:
        """For ``parametrize``; the rare bugs' tests are long."""
        long = (pytest.mark.long, pytest.mark.slow)
        return [
            pytest.param(name, marks=long if name in self._rare else ()) for name in self.by_name
        ]

    def check_caught(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some world fails with the bug, and runs without it."""
        with monkeypatch.context() as patch:
            self.by_name[name](patch)
            found = self.first_failure()
        assert found is not None, f"no world noticed that {name.replace('_', ' ')}"
        seed, failure = found
        assert not isinstance(failure.__cause__, MISTAKES), failure
        for world in self._worlds(seed):
            world.run()

    def first_failure(self) -> tuple[int, WorldFailure] | None:
        """The seed of the first world that fails, and how it did."""
        for seed in range(self._seeds):
            try:
                for world in self._worlds(seed):
                    world.run()
            except WorldFailure as failure:
                return seed, failure
        return None
