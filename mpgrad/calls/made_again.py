"""made_again(): a branch anew, with the same bits: its process has died, or has dropped it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.calls.array_library import library_of
from mpgrad.calls.branch import Branch, record
from mpgrad.calls.call import BranchCall
from mpgrad.calls.random_numbers import generators_kept
from mpgrad.errors import MpgradError

_NOT_THE_SAME = (
    "{name} gave another result when it ran again to be differentiated: it depends on something "
    "else than its arguments and the random numbers of mpgrad, NumPy and Python (a clock, a file, "
    "os.urandom, an unseeded generator, the order of a set). Pass that as an argument"
)


def made_again(call: BranchCall, inputs: Sequence[Any], digest: int, **options: Any) -> Branch:
    """The branch of a call that ran before.

    Args:
        call: the call.
        inputs: see ``record``, as are ``options``.
        digest: of its outputs when it ran.

    Raises:
        MpgradError: its outputs differ from the first ones.
    """
    with generators_kept(library_of(call.library)):
        branch = record(call._replace(watched=None, seeks_lost=False), inputs, **options)
    if branch.digest() != digest:
        raise MpgradError(_NOT_THE_SAME.format(name=call.name))
    return branch
