"""differentiate(): a branch's gradients as the outputs of another one (see ``call.Derivative``)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import library_of
from mpgrad.calls.branch import Branch
from mpgrad.calls.call import BranchCall, Derivative
from mpgrad.calls.kept_branches import BRANCHES
from mpgrad.calls.made_again import made_again

_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: {argument}, which {name} has saved for its backward. Change it after backward(), "
    "or pass a .clone() of it"
)


def differentiate(
    task: Derivative, inputs: Callable[[], Sequence[Any]], grads: Sequence[Any]
) -> Branch:
    """The gradients of a branch: of this process, or made again.

    Args:
        task: what to differentiate.
        inputs: the tensors of the branch's inputs, if it has to be made again.
        grads: of the outputs that are ``task.wanted``.

    Returns:
        A Branch without a graph: its outputs are the gradients, its result is the pickle of the
        numbers of the inputs that they belong to.

    Raises:
        RuntimeError: the branch has saved an input that was changed in place.
        MpgradError: it was made again, and its outputs differ from the first ones.
        BaseException: what user code raises.
    """
    call = task.call
    with call.noted_in_backward():
        return _differentiate(task, call, inputs, grads)


def _differentiate(
    task: Derivative, call: BranchCall, inputs: Callable[[], Sequence[Any]], grads: Sequence[Any]
) -> Branch:
    library = library_of(call.library)
    branch = BRANCHES.get(call.number) or made_again(call, inputs(), task.digest)
    if task.changed:
        require_unsaved(call, branch, task.changed)
    given: list[Any] = [None] * len(branch.outputs)
    for number, grad in zip(task.wanted, grads, strict=True):
        given[number] = grad
    with engine_slot.locally(), library.entered(task.modes):
        found = branch.differentiate(given, task.needs)
    numbers = [number for number, grad in enumerate(found) if grad is not None]
    # The very tensors: torch takes over memory that nobody else holds.
    return Branch(library, pickle.dumps(numbers), [], [found[at] for at in numbers], [], [])


def require_unsaved(call: BranchCall, branch: Branch, changed: Sequence[int]) -> None:
    """Check that a branch has saved none of the inputs that were changed in place.

    Raises:
        RuntimeError: it has.
    """
    saved = branch.library.saved_inputs(branch)
    for number in changed:
        if number in saved:
            tensor = branch.inputs[number]
            what = call.inputs[number].name or "a tensor that it reaches"
            argument = f"{what} of shape {list(tensor.shape)}"
            raise RuntimeError(_MODIFIED.format(name=call.name, argument=argument))
