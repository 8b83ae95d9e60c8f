"""Samples beside which the processors were slowed down are taken again, up to a point."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks import awake, disturbance
from benchmarks.awake import kept_awake
from benchmarks.disturbance import Disturbance


class Scripted(Disturbance):
    """Finds the processors as it is told; from then on always undisturbed."""

    def __init__(self, slowed: Iterable[bool], patience_s: float = 60.0) -> None:
        super().__init__(patience_s)
        self.script = list(slowed)

    def is_slowed(self) -> bool:
        return self.script.pop(0) if self.script else False


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(disturbance, "_WAIT_S", 0.0)
    return []


def take_into(taken: list[float]) -> float:
    taken.append(float(len(taken)))
    return taken[-1]


def test_an_undisturbed_sample_is_taken_once(taken):
    probe = Scripted([False, False])
    assert probe.sample(lambda: take_into(taken)) == 0.0
    assert (probe.repeated, probe.counted, probe.undisturbed) == (0, 0, 1)


@pytest.mark.parametrize("slowed", [[True], [False, True]], ids=["before", "after"])
def test_a_disturbed_sample_is_taken_again(taken, slowed):
    probe = Scripted(slowed)
    assert probe.sample(lambda: take_into(taken)) == 1.0
    assert (probe.repeated, probe.counted, probe.undisturbed) == (1, 0, 1)
    assert str(probe).startswith("1 of 1 samples taken again; 0 count")


def test_an_endless_disturbance_does_not_stop_the_run(taken):
    probe = Scripted([True] * 1000)
    probe.sample(lambda: take_into(taken))
    assert (len(taken), probe.counted, probe.undisturbed) == (disturbance._TRIES, 1, 0)
    probe = Scripted([True] * 1000, patience_s=0.0)
    probe.sample(lambda: take_into(taken))
    assert (len(taken), probe.counted, probe.repeated) == (disturbance._TRIES + 1, 1, 0)


def test_the_second_process_probes_and_ends():
    with Disturbance() as probe:
        found = {probe.is_slowed() for _ in range(3)}
        child = probe._child
    assert found <= {False, True}
    assert child is None or child.returncode == 0


def test_the_latency_is_held_at_nothing(monkeypatch, tmp_path: Path):
    device = tmp_path / "latency"
    device.touch()
    monkeypatch.setattr(awake, "_LATENCY", device)
    with kept_awake() as state:
        assert state.startswith("kept awake")
        assert device.read_bytes() == bytes(4)


def test_without_rights_it_says_so(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(awake, "_LATENCY", tmp_path / "missing" / "device")
    with kept_awake() as state:
        assert state.startswith("may fall asleep")
