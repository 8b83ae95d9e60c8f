"""differentiate(): a branch's gradients as the outputs of another one (see ``call.Derivative``)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import ArrayLibrary, library_of
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
        A Branch without a graph: its outputs are what the gradients are made of. Its result is a
        pickle: for each gradient the number of its input, its form, and how many parts it has.

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
    # The very tensors: torch takes over memory that nobody else holds.
    told, outputs = list[tuple[int, Any, int]](), list[Any]()
    for number, grad in enumerate(found):
        if grad is not None:
            form, parts = library.taken_apart(grad)
            told.append((number, form, len(parts)))
            outputs += parts
    return Branch(library, pickle.dumps(told), [], outputs, [], [])


def gradients_by_number(
    library: ArrayLibrary, told: bytes, found: Sequence[Any], count: int
) -> list[Any]:
    """What ``differentiate`` has found for each of ``count`` inputs: its gradient, or None.

    Args:
        library: of the tensors.
        told, found: the result and the outputs of its Branch.
        count: the number of inputs.
    """
    gradients, left = [None] * count, iter(found)
    for number, form, parts in pickle.loads(told):
        gradients[number] = library.put_together(form, [*islice(left, parts)])
    return gradients


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
