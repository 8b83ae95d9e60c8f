"""BranchCall: everything that a process needs to run a function and to record what it does.

A BranchCall holds no tensors: the tensors that the function reaches are its inputs, which go with
it as arrays. So the same BranchCall makes the same branch again, in any process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.recording.tensors.storage import adopt
from mpgrad.wire.captured_state import CapturedState

Array: TypeAlias = np.ndarray[Any, Any]


class Item(NamedTuple):
    """The arguments of one call of the function.

    Attributes:
        data: their pickle; it goes on where that of ``BranchCall.code`` ends.
        buffers: arrays in it.
        number: its place in the map: errors name it, and its random numbers depend on it.
    """

    data: bytes
    buffers: tuple[Array, ...]
    number: int


def items_in_order(items: Sequence[Item]) -> str:
    """The numbers of some items, in words."""
    first, last = items[0].number, items[-1].number
    return f"item {first}" if first == last else f"items {first} to {last}"


#: The functions whose last call has raised, in forward or backward: the next one is watched.
FAILED: set[str] = set()


@contextmanager
def failure_noted(name: str) -> Iterator[None]:
    """Note in ``FAILED`` that the block raises."""
    try:
        yield
    except BaseException:
        FAILED.add(name)
        raise


class BranchCall(NamedTuple):
    """One function over one or several items.

    Attributes:
        number: of its branch, unique in the process that asks.
        name: of the function, for errors.
        code: the pickle of the function and of what all items share (bytes).
        code_buffers: arrays in it.
        items: several only if their results are summed.
        inputs: for each tensor that the function reaches, its class, whether it requires grad, its
            attributes, and its name for errors.
        is_sum: the result is the sum over the items.
        seed: where the random numbers of all items come from.
        modes: of the calling thread, as its library gives them.
        library: the module of the ArrayLibrary of its tensors.
        captured: the state of the caller; None: that of the process that runs it.
        held: for each tensor that is an attribute of a class of the client's: class, name, number.
        watched: whether what the function reaches is compared before and after; None: it is not.
            Otherwise the names of attributes that may change.
        seeks_lost: whether a library that does not always do it looks for leaves whose gradient
            would be lost.
        retries: how often an item that raises an Exception is tried again.
    """

    number: int
    name: str
    code: Array
    code_buffers: tuple[Array, ...]
    items: tuple[Item, ...]
    inputs: tuple[InputKind, ...]
    is_sum: bool
    seed: tuple[int, int, int]
    modes: tuple[Any, ...]
    library: str
    captured: CapturedState | None
    watched: frozenset[str] | None = None
    held: tuple[tuple[type[Any], str, int], ...] = ()
    seeks_lost: bool = False
    retries: int = 0

    def with_own_arrays(self, known: dict[int, tuple[Array, Array]]) -> BranchCall:
        """The call with copies of its NumPy arrays, which nobody writes: it may run again.

        Args:
            known: by ``id``, arrays and their copies; new ones are added.
        """

        def own(array: Array) -> Array:
            if id(array) not in known:
                known[id(array)] = array, adopt(array)
            return known[id(array)][1]

        items = [item._replace(buffers=tuple(map(own, item.buffers))) for item in self.items]
        code_buffers = tuple(map(own, self.code_buffers))
        return self._replace(code_buffers=code_buffers, items=tuple(items))

    @property
    def backward_in_words(self) -> str:
        """What is named in errors of its backward."""
        return f"the backward of {self.name} of {items_in_order(self.items)}"

    @contextmanager
    def noted_in_backward(self) -> Iterator[None]:
        """Let an error of its backward say whose it is."""
        try:
            with failure_noted(self.name):
                yield
        except BaseException as error:
            error.add_note(f"in {self.backward_in_words}")
            raise


class Derivative(NamedTuple):
    """A branch to differentiate, as a call of its own: what it gives are gradients.

    Attributes:
        call: the branch's, to make it again.
        digest: of its outputs.
        wanted: the numbers of the outputs that a gradient comes for.
        kinds: of these gradients, which follow the inputs of ``call``.
        needs: for each input, whether its gradient is wanted.
        changed: the numbers of the inputs that were changed in place meanwhile.
        modes: of the thread that differentiates.
    """

    call: BranchCall
    digest: int
    wanted: tuple[int, ...]
    kinds: tuple[InputKind, ...]
    needs: tuple[bool, ...]
    changed: tuple[int, ...]
    modes: tuple[Any, ...]

    @property
    def name(self) -> str:
        """For errors."""
        return f"the backward of {self.call.name}"

    @property
    def items(self) -> tuple[Item, ...]:
        """Of the call."""
        return self.call.items


class InputKind(NamedTuple):
    """What an input tensor is beside its array."""

    cls: type[Any]
    requires_grad: bool
    attributes: dict[str, Any] | None
    #: Its elements may be changed by the function, and the change counts (a Module's buffer).
    is_buffer: bool
    name: str
    #: What else the library needs to make the tensor of its array.
    layout: Any = None


class Ran(NamedTuple):
    """A BranchCall that has run, as the Node that stands for its branch needs it.

    Attributes:
        call: to make the branch again.
        lifetime: of the branch.
        digest: of its outputs.
        wanted: the numbers of the outputs that can be differentiated.
        outputs: these tensors.
        output_count: the number of all outputs.
        saved: the numbers of the inputs that the branch has saved.
        unreached: the numbers of those that require grad although no output depends on them.
        arrays: of the inputs, as they were sent.
    """

    call: BranchCall
    lifetime: Any
    digest: int
    wanted: tuple[int, ...]
    outputs: tuple[Any, ...]
    output_count: int
    saved: tuple[int, ...]
    unreached: tuple[int, ...]
    arrays: tuple[Array, ...]
