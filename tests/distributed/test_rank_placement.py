"""Which host runs which ranks, and who is refused: the pure part."""

from __future__ import annotations

from mpgrad.distributed.states.host_membership import (
    HostGone,
    HostJoined,
    Participant,
    RefuseHost,
    RendezvousExpired,
)
from mpgrad.distributed.states.rank_placement import (
    ANY,
    AssignRanks,
    DismissHost,
    LastCallExpired,
    PlacementAnswer,
    RankPlacement,
    RanksEnded,
)

VERSIONS = (("--rdzv-id", "job"), ("Python", "3.11"))


def came(
    name: str, number: int = ANY, versions: tuple[tuple[str, str], ...] = VERSIONS
) -> HostJoined:
    return HostJoined(Participant(number, name, f"tcp://{name}"), 0, versions)


def job(least: int, most: int, per_host: int = 2, *, restarts: bool = True) -> RankPlacement:
    return RankPlacement(
        came("a", 0), hosts_min=least, hosts_max=most, per_host=per_host, restarts=restarts
    )


def given(answers: list[PlacementAnswer]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """By incarnation: the host's number, and its new ranks."""
    assert all(isinstance(answer, AssignRanks) for answer in answers), answers
    return {a.to.incarnation: (a.host, a.ranks) for a in answers if isinstance(a, AssignRanks)}


def reason(answers: list[PlacementAnswer]) -> str:
    (answer,) = answers
    assert isinstance(answer, RefuseHost)
    return answer.reason


def test_hosts_are_counted_as_they_come() -> None:
    placement = job(3, 3)
    assert placement.handle_event(came("b")) == []
    assert placement.handle_event(came("b")) == []  # it says that it is still there
    assert placement.is_waiting
    assert not placement.has_begun
    assert given(placement.handle_event(came("c"))) == {
        "a": (0, (0, 1)),
        "b": (1, (2, 3)),
        "c": (2, (4, 5)),
    }
    assert placement.awaited == [1, 2]


def test_a_number_that_a_host_asks_for_is_its_own() -> None:
    placement = job(3, 3, per_host=1)
    placement.handle_event(came("b", 2))
    assert given(placement.handle_event(came("c"))) == {
        "a": (0, (0,)),
        "b": (2, (2,)),
        "c": (1, (1,)),
    }


def test_who_does_not_fit_is_told_why() -> None:
    placement = job(2, 2)
    assert "no place" not in reason(placement.handle_event(came("b", 0)))
    assert reason(placement.handle_event(came("b", 0))) == "host number 0 is taken, by tcp://a"
    assert reason(placement.handle_event(came("b", 2))) == "host number 2 is not below 2"
    others = (("--rdzv-id", "other"), ("Python", "3.11"))
    text = "the host at tcp://b has --rdzv-id other, but host 0 has --rdzv-id job"
    assert reason(placement.handle_event(came("b", versions=others))) == text
    placement.handle_event(came("b"))
    assert "the job has its 2 hosts, and no place for" in reason(placement.handle_event(came("c")))


def test_who_does_not_come_is_named() -> None:
    placement = job(3, 3)
    placement.handle_event(came("b", 2))
    text = "of 3 hosts these did not come: 1; there is tcp://a, tcp://b"
    (answer,) = placement.handle_event(RendezvousExpired())
    assert answer == RefuseHost(came("b", 2).member, text, is_timeout=True)
    placement.handle_event(HostGone("b"))
    assert "these did not come: 1, 2" in placement.why_incomplete()
    assert job(2, 4).why_incomplete() == "of 2 hosts only these came: tcp://a"


def test_fewer_hosts_share_the_ranks_of_all() -> None:
    placement = job(2, 4)
    assert not placement.has_quorum
    assert placement.handle_event(LastCallExpired()) == []
    placement.handle_event(came("b"))
    placement.handle_event(came("c"))
    assert placement.has_quorum
    assert given(placement.handle_event(LastCallExpired())) == {
        "a": (0, (0, 1)),
        "b": (1, (2, 3, 4)),
        "c": (2, (5, 6, 7)),
    }
    # One that comes later waits until it is needed, and then gets what a lost one has run.
    assert given(placement.handle_event(came("d"))) == {"d": (3, ())}
    assert given(placement.handle_event(HostGone("b"))) == {"a": (0, (4,)), "d": (3, (2, 3))}
    assert given(placement.handle_event(HostGone("d"))) == {"a": (0, (2,)), "c": (2, (3,))}
    assert "was lost" in reason(placement.handle_event(came("b")))


def test_too_few_hosts_wait_for_another_one() -> None:
    placement = job(2, 2)
    placement.handle_event(came("b"))
    assert placement.handle_event(HostGone("b")) == []
    assert placement.is_waiting
    text = "host 1 (tcp://b) was lost, and no other host came instead"
    assert placement.why_incomplete() == text
    assert given(placement.handle_event(came("c"))) == {"c": (1, (2, 3))}
    assert not placement.is_waiting


def test_without_restarts_and_after_an_end_nothing_is_started() -> None:
    placement = job(1, 2, restarts=False)
    placement.handle_event(came("b"))
    assert placement.handle_event(HostGone("b")) == []
    assert not placement.is_waiting
    assert placement.awaited == []
    placement = job(1, 3, per_host=1)
    for name in "bc":
        placement.handle_event(came(name))
    assert placement.handle_event(RanksEnded("b", (1,))) == [DismissHost(came("b").member)]
    assert placement.awaited == [2]
    assert placement.handle_event(HostGone("c")) == []
    assert placement.awaited == []
    assert placement.handle_event(came("d")) == [DismissHost(came("d").member)]
