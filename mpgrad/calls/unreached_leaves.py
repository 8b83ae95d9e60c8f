"""The error for a leaf that a call has used and that is no input: its gradient would be lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpgrad.calls.call import BranchCall

if TYPE_CHECKING:
    from mpgrad.calls.branch import Branch

_LOST_GRADIENT = (
    "a call has used a tensor of shape {shape} that requires grad and does not travel: a global of "
    "an installed package, or what an initializer or an earlier call has left in this process. Its "
    "gradient would be lost. Pass it as an argument, or in shared=(...)"
)


def lost_gradient(leaf: Any) -> RuntimeError:
    """The error for ``leaf``, which was there before the call."""
    return RuntimeError(_LOST_GRADIENT.format(shape=[*leaf.shape]))


def require_own_leaves(
    call: BranchCall, branch: Branch, record: Callable[[BranchCall, Sequence[Any]], Branch]
) -> None:
    """Check that the leaves of a branch are inputs, or were made by the call. If something else
    holds one, the call runs again, on copies: then it makes another one.

    Raises:
        RuntimeError: one is older than the call.
    """
    library = branch.library
    standing = library.standing_leaves(branch)
    if not standing:
        return
    arrays = [library.laid_out(one)[0] for one in branch.inputs]
    inputs = list(map(library.leaf, call.inputs, arrays))
    again = record(call._replace(watched=None, seeks_lost=False), inputs)
    found = set(map(id, library.standing_leaves(again)))
    for leaf in standing:
        if id(leaf) in found:
            raise lost_gradient(leaf)
