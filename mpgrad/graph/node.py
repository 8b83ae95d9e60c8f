"""Node and Edge: the backward graph that forward records.

A Node is one derivative rule with what it saved. Its *inputs* are the gradients of the forward
outputs; its *outputs* are the gradients of the forward inputs and flow along ``next_edges``.
This file knows neither tensors nor engines.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpgrad.base.device import CPU, Device
from mpgrad.base.thread_state import PerThread
from mpgrad.graph.anomaly import mode as anomaly
from mpgrad.graph.anomaly import origin
from mpgrad.graph.hooks import Hooks, NodeHooks, RemovableHandle

#: Shown when saved tensors are asked for after backward released them.
FREED_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)

#: AccumulateGrad carries this number, so that it runs as soon as it is ready (PyTorch does so
#: too: the gradient's buffers are freed early).
SEQUENCE_NR_MAX = 2**63 - 1

#: ``Node.prefix`` of the Nodes that belong to no operator of PyTorch's.
NATIVE = "torch::autograd::"


class InputMetadata(NamedTuple):
    """What a gradient that flows into one input of a Node must look like."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: Device = CPU

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Edge(NamedTuple):
    """Where one output of a Node flows: input ``input_nr`` of ``function``."""

    function: Node
    input_nr: int


class _SequenceCounter(PerThread):
    next_nr = 0


_counter = _SequenceCounter()


def next_sequence_nr() -> int:
    """The number of the next Node recorded on this thread: later Nodes run first."""
    number = _counter.next_nr
    _counter.next_nr = number + 1
    return number


def upcoming_sequence_nr() -> int:
    """What ``next_sequence_nr`` gives next on this thread."""
    return _counter.next_nr


class Node:
    """One step of the backward graph.

    Attributes:
        next_edges: for each output, the Edge that it flows along, or None.
        input_metadata: for each input, the shape, dtype and device that it must have.
        sequence_nr: recording order on its thread; the serial engine runs higher ones first.
    """

    __slots__ = (
        "__weakref__",
        "_metadata",
        "hooks",
        "input_metadata",
        "next_edges",
        "sequence_nr",
    )

    #: Whether the rule also runs where no gradient, or not every one, is defined.
    takes_undefined = False
    #: Whether hooks packed a saved tensor, so that only the calling process may run the rule. The
    #: classes that save tensors have a slot of this name.
    has_packed = False
    #: Whether its rule is the user's.
    is_user_code = False
    #: Whether the rule gives out the gradient that came in, the very array, where one of the same
    #: shape and dtype is wanted.
    passes_on = False
    #: Whether only the client may run it, because it calls what the user registered, or raises.
    runs_on_client = False

    def __init__(
        self,
        next_edges: Sequence[Edge | None] = (),
        input_metadata: Sequence[InputMetadata] = (),
        sequence_nr: int | None = None,
    ) -> None:
        self.next_edges = tuple(next_edges)
        self.input_metadata = tuple(input_metadata)
        self.sequence_nr = next_sequence_nr() if sequence_nr is None else sequence_nr
        #: What users hung on this Node; None until they do.
        self.hooks: NodeHooks | None = None
        self._metadata: dict[str, Any] | None = origin() if anomaly.enabled else None

    #: What ``name()`` puts before the name of the class: what PyTorch's users compare it with.
    prefix = ""

    def name(self) -> str:
        """The Node's name as in PyTorch, ``MulBackward0`` for the operator ``mul``."""
        return self.prefix + type(self).__name__

    @property
    def label(self) -> str:
        """What reports call it."""
        return type(self).__name__

    @property
    def subject(self) -> Node:
        """The recorded Node that this one runs, or calls the hooks of: mostly itself."""
        return self

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """PyTorch's view of ``next_edges``: (Node or None, input number)."""
        return tuple((e.function, e.input_nr) if e else (None, 0) for e in self.next_edges)

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
        """True: what needs no gradient has no Node."""
        return True

    # ------------------------------------------------------------------ hooks

    def register_prehook(self, hook: Callable[[tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before this Node runs.

        Args:
            hook: gets a tuple with a Tensor or None for each forward output; what it returns (None,
                or a tuple of the same kind) takes their place.
        """
        return self.own_hooks().pre.add(hook)

    def register_hook(self, hook: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> Any:
        """Call ``hook(grad_inputs, grad_outputs)`` after this Node has run.

        Hooks that are registered while a backward runs count from the next one on, unless this
        Node has such hooks already or runs user code at that moment.

        Args:
            hook: gets a tuple with a Tensor or None for each forward input and the tuple that the
                Node ran on; what it returns (None, or a tuple) takes the place of the first.

        Returns:
            A handle whose ``remove()`` unregisters the hook.
        """
        return self.own_hooks().post.add(hook)

    def own_hooks(self) -> NodeHooks:
        """The (created on demand) place of everything that users hang on this Node."""
        if self.hooks is None:
            self.hooks = NodeHooks()
        return self.hooks

    def hooks_for(self, input_nr: int) -> Hooks:
        """The (created on demand) hooks on the gradient of forward output ``input_nr``."""
        return self.own_hooks().tensor.setdefault(input_nr, Hooks())

    def outputs_shown(self) -> tuple[int, ...] | None:
        """Which outputs post-hooks see; None for all."""
        return None

    def retain_grad_for(self, input_nr: int, tensor: Any) -> None:
        """Have the engine store the gradient of forward output ``input_nr`` in ``tensor``."""
        self.own_hooks().retained[input_nr] = weakref.ref(tensor)

    # ------------------------------------------------------------------ running it

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        """Run the rule on arrays of namespace ``xp``; None stands for an undefined gradient.

        ``needs`` says for each output whether this GraphTask wants it.
        """
        raise NotImplementedError

    def apply_recorded(self, grads: Sequence[Any], needs: Sequence[bool]) -> Sequence[Any]:
        """Run the rule on Tensors (or None) with recording on: for ``create_graph``.

        Operators have no need of it: their Nodes are mirrored (see ``higher_order.recording``).
        """
        raise NotImplementedError(f"{self.name()} does not support create_graph=True")

    if TYPE_CHECKING:

        def __call__(self, *grads: Any) -> Any:
            """Attached by ``tensor_methods``: it needs the operators."""

    def release_saved(self) -> None:
        """Drop what forward saved; a later use raises (see FREED_MESSAGE)."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object at {id(self):#x}>"
