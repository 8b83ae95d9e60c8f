"""in_short(): what follows from the table of a case, in one or two sentences."""

from __future__ import annotations

from collections.abc import Mapping

#: Contenders that are no libraries: what the work itself takes, or the machine.
_BOUNDS = ("two-process limit", "the loops alone", "pipe, one byte")
#: Times that differ by less than this factor are called equal.
_EQUAL = 1.05


def in_short(medians: Mapping[str, float]) -> str:
    """The sentences; empty without a library to compare with.

    Args:
        medians: the median time of each contender, in one unit.
    """
    ours = {name: time for name, time in medians.items() if name.startswith("mpgrad")}
    peers = {name: time for name, time in medians.items() if name not in {*ours, *_BOUNDS}}
    if not ours or not peers:
        return ""
    mine, peer = min(ours, key=ours.__getitem__), min(peers, key=peers.__getitem__)
    factor, own, other = ours[mine] / peers[peer], f"*{mine}*", f"*{peer}*"
    if factor >= _EQUAL:
        said = (
            f"{other} is fastest. mpgrad's fastest mode, {own}, takes {factor:.2g} times as long."
        )
    elif factor > 1 / _EQUAL:
        said = f"mpgrad's fastest mode, {own}, takes as long as the fastest peer, {other}."
    else:
        said = f"{own} is fastest. The fastest peer, {other}, takes {1 / factor:.2g} times as long."
    limit = medians.get("two-process limit")
    if limit is not None:
        said += f" Two bare processes take {limit / ours[mine]:.2g} of mpgrad's time."
    return said
