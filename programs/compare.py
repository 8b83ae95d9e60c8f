"""Compares one program with both libraries: its losses, and the numbers that it printed."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

#: The largest relative difference of two numbers, and the largest absolute one.
RELATIVE, ABSOLUTE = 2e-3, 1e-4

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")


class Outcome(NamedTuple):
    """The result of one run of a program.

    Attributes:
        code: its exit code; None: it took too long.
        losses: the value on which each ``backward()`` was called.
        printed: on stdout.
        error: the last line on stderr, of a run that failed.
    """

    code: int | None
    losses: list[float]
    printed: str
    error: str


class Verdict(NamedTuple):
    """A comparison: ``runs`` with mpgrad, ``agrees`` with PyTorch, and a description."""

    runs: bool
    agrees: bool
    text: str


def compare(torch: Outcome, ours: Outcome) -> Verdict:
    """Whether a program did the same with mpgrad as with PyTorch, if it ran with PyTorch."""
    if ours.code != 0:
        return Verdict(False, False, ours.error or "it took too long")
    if len(torch.losses) != len(ours.losses):
        return Verdict(True, False, f"{len(ours.losses)} losses, not {len(torch.losses)}")
    for k, (there, here) in enumerate(zip(torch.losses, ours.losses, strict=True)):
        if not close(there, here):
            return Verdict(True, False, f"loss {k + 1} is {here:.6g}, not {there:.6g}")
    text = _difference(torch.printed, ours.printed)
    return Verdict(True, not text, text)


def _difference(there: str, here: str) -> str:
    numbers, ours = _NUMBER.findall(there), _NUMBER.findall(here)
    for a, b in zip(numbers, ours, strict=False):
        if not close(float(a), float(b)):
            return f"it prints {b}, not {a}"
    if len(numbers) != len(ours):
        return f"it prints {len(ours)} numbers, not {len(numbers)}"
    here = here.replace("mpgrad.", "torch.")  # as in "torch.Size([2])"
    words, our_words = (_NUMBER.sub("#", text).split() for text in (there, here))
    for word, our_word in zip(words, our_words, strict=False):
        if word != our_word:
            return f"it prints {our_word!r}, not {word!r}"
    return "" if len(words) == len(our_words) else "it prints more or less"


def close(a: float, b: float) -> bool:
    """Whether two numbers agree, NaN with NaN."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= RELATIVE * max(abs(a), abs(b)) + ABSOLUTE
