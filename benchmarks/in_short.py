"""in_short(): what the table of a case says, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

#: Contenders that are no libraries: what the work itself takes, or the machine.
_BOUNDS = ("two-process limit", "the loops alone", "pipe, one byte")
#: Times that differ by less than this factor are called equal.
_EQUAL = 1.05


def in_short(medians: Mapping[str, float]) -> str:
    """The sentence; empty without a library to compare with.

    Args:
        medians: the median time of each contender, in one unit.
    """
    ours = {name: time for name, time in medians.items() if name.startswith("mpgrad")}
    peers = {name: time for name, time in medians.items() if name not in {*ours, *_BOUNDS}}
    if not ours or not peers:
        return ""
    mine, peer = min(ours, key=ours.__getitem__), min(peers, key=peers.__getitem__)
    factor = ours[mine] / peers[peer]
    if factor >= _EQUAL:
        said = f"{peer} is fastest; {mine}, mpgrad's fastest mode here, takes {factor:.2g} times"
        said += " as long"
    elif factor > 1 / _EQUAL:
        said = f"{mine}, mpgrad's fastest mode here, takes as long as the fastest peer, {peer}"
    else:
        said = f"{mine} is fastest: the fastest peer, {peer}, takes {1 / factor:.2g} times as long"
    limit = medians.get("two-process limit")
    beside = f"; two bare processes take {limit / ours[mine]:.2g} of its time" if limit else ""
    return f"In short: {said}{beside}."
