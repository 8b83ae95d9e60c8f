"""ArrayLibrary: what calls need of the library whose tensors a function computes with.

mpgrad's own tensors are one (``own_tensors``). The core of calls knows nothing else of tensors: how
they travel, how they are recorded and differentiated stands here, once for each library.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from mpgrad.calls.branch import Branch
    from mpgrad.calls.call import InputKind, Ran
    from mpgrad.wire.programs import ResultTensor

Array: TypeAlias = np.ndarray[Any, Any]


#: The error of ``require_own_surroundings`` about hooks.
HOOKS_OF_ALL = (
    "a map or a fork with hooks of all Modules, which no worker has: register them on the Modules "
    "themselves, or inside of what is called, and remove them there"
)


class ArrayLibrary(ABC):
    """The tensors of one library; ``Tensor`` in these comments is one of them."""

    #: Where ``LIBRARY`` is this object, in every process.
    module: str
    #: What becomes an input wherever a pickle meets it.
    tensor_class: type[Any]

    # ------------------------------------------------------------------ inputs

    def require_fit(self, tensor: Any) -> None:
        """Check that a Tensor can travel.

        Raises:
            TypeError: it cannot; the message says what to do.
        """
        return

    def reduced(self, obj: Any) -> Any:
        """How an object that is no Tensor is pickled, as ``reducer_override``."""
        return NotImplemented

    def require_own(self, obj: Any) -> None:
        """Refuse an object that a function reaches and that would get no gradient.

        Raises:
            TypeError: it is a Tensor of another library.
        """
        return

    @abstractmethod
    def kind(self, tensor: Any, is_buffer: bool, name: str) -> InputKind:
        """What a Tensor is beside its array."""

    @abstractmethod
    def array(self, tensor: Any, is_buffer: bool) -> Array:
        """The memory of an input, to be sent; what is a buffer, or may change, is a copy."""

    @abstractmethod
    def leaf(self, kind: InputKind, array: Array) -> Any:
        """The Tensor that stands for an input in a branch; ``array`` must not be written."""

    def behind(self, tensor: Any, kind: InputKind) -> Any:
        """The Tensor that stands for the caller's own one in a branch that is made again with a
        history: a view, so that a gradient of it runs no hook of the caller's."""
        found = tensor.view_as(tensor)
        if type(found) is not kind.cls:
            found.__class__ = kind.cls
        vars(found).update(kind.attributes or {})
        return found

    def is_live(self, array: Array) -> bool:
        """Whether an array of ``array()`` is the caller's own memory, which may change and which a
        branch in the same process could write."""
        return False

    def is_on_gpu(self, tensor: Any) -> bool:
        """Whether a Tensor lies where workers of the CPU cannot read it."""
        return False

    def is_held_elsewhere(self, tensor: Any) -> bool:
        """Whether an array of the caller's may lie over the memory that ``array`` has given."""
        return False

    @abstractmethod
    def version(self, tensor: Any) -> int:
        """Differs after each change in place."""

    @abstractmethod
    def mark(self, tensor: Any) -> Any:
        """For ``has_changed``."""

    @abstractmethod
    def has_changed(self, tensor: Any, mark: Any) -> bool:
        """Whether a Tensor was changed in place, or was given other memory, since ``mark``."""

    @abstractmethod
    def has_grad(self, leaf: Any) -> bool:
        """Whether somebody has called ``backward()`` on an input inside of the branch."""

    @abstractmethod
    def content(self, tensor: Any) -> bytes:
        """The bytes of its elements."""

    # ------------------------------------------------------------------ running

    @abstractmethod
    def modes(self) -> tuple[Any, ...]:
        """The modes of the calling thread that a function may notice, as plain values."""

    def require_own_surroundings(self) -> None:
        """Refuse what changes the calls of the library in this process alone.

        Raises:
            RuntimeError: there is such a thing.
        """
        return

    @abstractmethod
    def entered(self, modes: tuple[Any, ...]) -> AbstractContextManager[None]:
        """Have these modes."""

    @abstractmethod
    def draw(self) -> int:
        """A number from the library's generator, from which the numbers of a call's items come."""

    @abstractmethod
    def seed(self, drawn: int, index: int) -> None:
        """Let the library's generator give the random numbers of item ``index``."""

    @abstractmethod
    def generator_kept(self) -> AbstractContextManager[None]:
        """Leave the library's generator of this process as it was."""

    @abstractmethod
    def add(self, first: Any, second: Any) -> Any:
        """The sum of two Tensors, recorded."""

    def held(self) -> int:
        """The bytes that this process has, for a library that cannot count what a graph saves."""
        return 0

    # ------------------------------------------------------------------ branches

    @abstractmethod
    def nbytes(self, branch: Branch) -> int:
        """The bytes of a branch's outputs and of what its graph has saved."""

    @abstractmethod
    def saved_inputs(self, branch: Branch) -> list[int]:
        """The numbers of the inputs whose values the branch needs for its backward.

        Raises:
            RuntimeError: a gradient would be lost: a leaf that is no input was there before.
        """

    def runs_user_code(self, branch: Branch) -> bool:
        """Whether its backward may run code of the user's."""
        return True

    def standing_leaves(self, branch: Branch) -> Sequence[Any]:
        """The leaves in a branch's graph that are no inputs and that something else holds, too; of
        a library that does not know them otherwise."""
        return ()

    def aliases(self, branch: Branch) -> Sequence[int]:
        """The numbers of the outputs that share memory with an input or another output."""
        return ()

    @abstractmethod
    def used_inputs(self, branch: Branch) -> tuple[Sequence[int], Sequence[int]]:
        """What the caller's Node has to know: the ``saved_inputs``, and those that require grad
        although no output depends on them."""

    @abstractmethod
    def gradients(
        self, outputs: list[Any], inputs: list[Any], grads: list[Any], create_graph: bool
    ) -> Sequence[Any]:
        """The gradient of each input, or None; the graph stays."""

    def taken_apart(self, gradient: Any) -> tuple[Any, list[Any]]:
        """The Tensors that a gradient is made of, and what ``put_together`` needs beside them.

        Raises:
            TypeError: it cannot travel.
        """
        return None, [gradient]

    def put_together(self, form: Any, parts: list[Any]) -> Any:
        """The gradient that ``taken_apart`` was given."""
        return parts[0]

    # ------------------------------------------------------------------ results

    @abstractmethod
    def laid_out(self, tensor: Any) -> tuple[Array, tuple[int, ...], tuple[int, ...], str]:
        """A Tensor's elements without gaps, as an array that is copied in the order of its memory;
        its shape, its strides, and the name of its dtype."""

    def frozen(self, tensor: Any) -> None:
        """Refuse changes in place of a result that was an alias where it was made."""
        return

    @abstractmethod
    def opened(self, told: ResultTensor, data: Array | None) -> Any:
        """The Tensor that another process has laid out; ``data`` is None if it has no elements."""

    @abstractmethod
    def copied(self, tensor: Any) -> Any:
        """A Tensor without history, in memory of its own."""

    @abstractmethod
    def state_of(self, leaf: Any) -> Any:
        """What a Tensor that a call has made is beside its elements: a class, attributes, whether
        it needs grad, its ``.grad``; None: nothing."""

    @abstractmethod
    def with_state(self, tensor: Any, state: Any) -> Any:
        """The Tensor that ``state_of`` was asked for."""

    @abstractmethod
    def write(self, buffer: Any, tensor: Any) -> None:
        """Give a Module's buffer new elements."""

    def place(self, inputs: Sequence[Any], modes: tuple[Any, ...]) -> Any:
        """The place in the caller's program for a Node that is made later."""
        return None

    @abstractmethod
    def attach(self, ran: Ran, inputs: Sequence[Any], place: Any, fn: Any) -> Sequence[Any]:
        """``ran.outputs`` with a history: the Node that stands for the branch.

        Args:
            ran: the call.
            inputs: of the call, the caller's own.
            place: what ``place`` has given; None: now.
            fn: what was called.
        """


def library_of(module: str) -> ArrayLibrary:
    """The library with that name."""
    library: ArrayLibrary = importlib.import_module(module).LIBRARY
    return library
