"""Node and Edge: the backward graph that forward records.

A Node is one derivative rule with its saved values. Its *inputs* are the gradients of the forward
outputs; its *outputs* are the gradients of the forward inputs and flow along ``next_edges``.
This file knows neither tensors nor engines.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mpgrad.base.device import CPU, Device
from mpgrad.base.thread_state import PerThread
from mpgrad.recording.graph.anomaly import mode as anomaly
from mpgrad.recording.graph.anomaly import origin
from mpgrad.recording.graph.hooks import Hooks, NodeHooks, RemovableHandle

#: The error for saved tensors that backward has freed.
FREED_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)

#: The number of AccumulateGrad, with which it runs as soon as it is ready (as in PyTorch: the
#: gradient's buffers are freed early).
SEQUENCE_NR_MAX = 2**63 - 1

#: ``Node.prefix`` of Nodes without an operator in PyTorch.
NATIVE = "torch::autograd::"


class InputMetadata(NamedTuple):
    """The form that a gradient into one input of a Node must have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: Device = CPU

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


#: The target of one output of a Node: another Node, and the number of its input. Each operand of
#: each recorded call needs one, and a tuple without a class of its own takes a sixth of the time.
Edge: TypeAlias = tuple["Node", int]


class _SequenceNumbers(PerThread):
    """Attributes: ``next``: gives the number of the next Node recorded on this thread: later Nodes
    run first."""

    def __init__(self) -> None:
        self.begin_at(0)

    def begin_at(self, number: int) -> None:
        self.next = itertools.count(number).__next__


SEQUENCE = _SequenceNumbers()


def upcoming_sequence_nr() -> int:
    """The number that the next Node recorded on this thread gets."""
    number = SEQUENCE.next()
    SEQUENCE.begin_at(number)
    return number


def begin_sequence_at(number: int) -> None:
    """This thread's next Node gets ``number``: what it runs stands in another thread's program."""
    SEQUENCE.begin_at(number)


def continue_sequence_from(number: int) -> None:
    """This thread's next Node gets at least ``number``: it goes on with what another has made."""
    SEQUENCE.begin_at(max(SEQUENCE.next(), number))


class Node:
    """One step of the backward graph.

    Attributes:
        next_edges: for each output its Edge, or None.
        input_metadata: for each input, the shape, dtype and device that it must have.
        sequence_nr: recording order on its thread; the serial engine runs higher ones first.
        leaves: keeps the leaves behind ``next_edges``, where nothing else does; nobody reads it.
    """

    __slots__ = (
        "__weakref__",
        "_metadata",
        "hooks",
        "input_metadata",
        "leaves",
        "next_edges",
        "sequence_nr",
    )

    #: Whether the rule also runs if some or all gradients are undefined.
    takes_undefined = False
    #: Whether hooks packed a saved tensor, so that only the calling process may run the rule. The
    #: classes that save tensors have a slot of this name.
    has_packed = False
    #: Whether its rule is user code.
    is_user_code = False
    #: Whether the rule may return its input array itself for an output of the same shape and
    #: dtype (no copy).
    passes_on = False
    #: Whether only the client may run it, because it calls user code, or raises an error.
    runs_on_client = False

    def __init__(
        self,
        next_edges: Sequence[Edge | None] = (),
        input_metadata: Sequence[InputMetadata] = (),
        sequence_nr: int | None = None,
    ) -> None:
        self.next_edges = tuple(next_edges)
        self.leaves: Any = None
        self.input_metadata = tuple(input_metadata)
        self.sequence_nr = SEQUENCE.next() if sequence_nr is None else sequence_nr
        #: The user's hooks on this Node; None if there are none.
        self.hooks: NodeHooks | None = None
        self._metadata: dict[str, Any] | None = origin() if anomaly.enabled else None

    #: The prefix of the class name in ``name()``, which PyTorch's users compare with.
    prefix = ""

    def name(self) -> str:
        """The Node's name as in PyTorch, ``MulBackward0`` for the operator ``mul``."""
        return self.prefix + type(self).__name__

    @property
    def label(self) -> str:
        """The name in reports."""
        return type(self).__name__

    @property
    def subject(self) -> Node:
        """The recorded Node that this one runs, or whose hooks it calls: usually itself."""
        return self

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """PyTorch's view of ``next_edges``: (Node or None, input number)."""
        for edge in self.next_edges:
            if edge is not None:
                edge[0].hold_leaf()
        return tuple([edge or (None, 0) for edge in self.next_edges])

    @property
    def metadata(self) -> dict[str, Any]:
        """A dictionary for the user's own notes about this Node."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    @property
    def _input_metadata(self) -> tuple[InputMetadata, ...]:
        """PyTorch's name of ``input_metadata``."""
        return self.input_metadata

    def _sequence_nr(self) -> int:
        """PyTorch's name of ``sequence_nr``."""
        return self.sequence_nr

    @property
    def requires_grad(self) -> bool:
        """True: values that need no gradient have no Node."""
        return True

    def hold_leaf(self) -> None:
        """Of a leaf's Node: own the leaf from now on, because a user may keep this Node alone."""

    # ------------------------------------------------------------------ hooks

    def register_prehook(self, hook: Callable[[tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before this Node runs.

        Args:
            hook: gets a tuple with a Tensor or None for each forward output; its result (None, or a
                tuple of the same kind) replaces them.
        """
        return self.own_hooks().pre.add(hook)

    def register_hook(self, hook: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> Any:
        """Call ``hook(grad_inputs, grad_outputs)`` after this Node has run.

        Hooks that are registered while a backward runs count from the next one on, unless this
        Node has such hooks already or runs user code at that moment.

        Args:
            hook: gets a tuple with a Tensor or None for each forward input, and the tuple of the
                Node's inputs; its result (None, or a tuple) replaces the first tuple.

        Returns:
            A handle whose ``remove()`` unregisters the hook.
        """
        return self.own_hooks().post.add(hook)

    def own_hooks(self) -> NodeHooks:
        """The container of the user's hooks on this Node, created on demand."""
        if self.hooks is None:
            self.hooks = NodeHooks()
        return self.hooks

    def hooks_for(self, input_nr: int) -> Hooks:
        """The hooks on the gradient of forward output ``input_nr``, created on demand."""
        return self.own_hooks().tensor.setdefault(input_nr, Hooks())

    def outputs_shown(self) -> tuple[int, ...] | None:
        """The outputs that post-hooks see; None for all."""
        return None

    def retain_grad_for(self, input_nr: int, tensor: Any) -> None:
        """Let the engine store the gradient of forward output ``input_nr`` in ``tensor``."""
        self.own_hooks().retained[input_nr] = weakref.ref(tensor)

    # ------------------------------------------------------------------ running it

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        """Run the rule on arrays of namespace ``xp``; None stands for an undefined gradient.

        ``needs`` says for each output whether this GraphTask needs it.
        """
        raise NotImplementedError

    def apply_recorded(self, grads: Sequence[Any], needs: Sequence[bool]) -> Sequence[Any]:
        """Run the rule on Tensors (or None) with recording on: for ``create_graph``.

        Operators do not use it: their Nodes are mirrored (see ``higher_order.recording``).
        """
        raise NotImplementedError(f"{self.name()} does not support create_graph=True")

    if TYPE_CHECKING:

        def __call__(self, *grads: Any) -> Any:
            """Attached by ``tensor_methods``: it needs the operators."""

    def release_saved(self) -> None:
        """Drop the saved tensors; a later use raises FREED_MESSAGE."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object at {id(self):#x}>"
