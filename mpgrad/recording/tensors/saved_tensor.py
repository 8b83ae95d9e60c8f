"""SavedTensor: a value that forward keeps for backward, with its version at that time.

A saved input keeps the Tensor itself. A saved output keeps only its array, because the Node would
otherwise own its own output and form a cycle. If a pair of hooks is in force, only the result of
its pack hook is kept (:class:`PackedTensor`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpgrad.base.accidental_ends import accidental_end
from mpgrad.recording.graph.grad_modes import no_grad
from mpgrad.recording.tensors.hooks_in_force import HOOKS, HookPair
from mpgrad.recording.tensors.storage import INFERENCE, VersionCounter
from mpgrad.recording.tensors.tensor import Tensor, gradient_edge

if TYPE_CHECKING:
    from mpgrad.recording.graph.node import Edge, Node
    from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad

_DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_(). This is "
    "not supported, please use out-of-place `.detach()` instead"
)


class SavedTensor:
    """One tensor that a Node saved (compare ``torch::autograd::SavedVariable``).

    Attributes:
        packed: the result of a pack hook; None without hooks.
    """

    # `_tensor` and `_was_leaf` belong to an input, the others except `_version` to an output.
    __slots__ = (
        "_array",
        "_counter",
        "_output_nr",
        "_requires_grad",
        "_tensor",
        "_version",
        "_was_leaf",
        "packed",
    )

    def __init__(self, tensor: Tensor, is_output: bool = False) -> None:
        counter = tensor._version_counter
        if counter is INFERENCE:
            raise RuntimeError(
                "Inference tensors cannot be saved for backward. Please do not use Tensors created "
                "in inference mode in computation tracked by autograd. To work around this, you "
                "can make a clone to get a normal tensor and use it in autograd, or use "
                "`no_grad()` instead of `inference_mode()`."
            )
        self.packed: PackedTensor | None = None
        self._version = counter.value
        if is_output:
            self._tensor = None
            self._array = tensor._array
            self._counter = counter
            self._output_nr = tensor._output_nr
            self._requires_grad = tensor._requires_grad
        else:
            self._tensor = tensor
            self._was_leaf = tensor._grad_fn is None
        if HOOKS.entered:
            pair = HOOKS.innermost()
            if pair is not None:
                self._pack(pair, tensor, tensor, is_output)

    @property
    def holds_input(self) -> bool:
        """Whether the tensor itself is kept: an input that no hook has packed."""
        return self._tensor is not None

    @property
    def counter(self) -> VersionCounter:
        """Counts the changes of the saved memory (not of a hook's result)."""
        return self._counter if self._tensor is None else self._tensor._version_counter

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor required grad when it was saved."""
        if self.packed is not None:
            return self.packed.requires_grad
        return self._requires_grad if self._tensor is None else self._tensor.requires_grad

    def register_hooks(
        self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]
    ) -> None:
        """Pack the tensor now, and unpack it whenever it is needed.

        Raises:
            RuntimeError: it has hooks already, or ``pack`` changed it in place.
        """
        if self.packed is not None:
            raise RuntimeError(
                "Calling register_hooks on a saved tensor whose hooks have already been set. Hint: "
                "only one pair of hooks is allowed at a time."
            )
        original = self._tensor
        if original is None:
            array, counter = self._array, self._counter
        else:
            array, counter = original._array, original._version_counter
        # Not the tensor itself: the result of the hook must not keep this graph alive.
        seen = Tensor(array, version_counter=counter)
        self._pack(HookPair(pack, unpack), seen, original, original is None)

    def _pack(self, pair: HookPair, seen: Tensor, original: Tensor | None, is_output: bool) -> None:
        """Call the pack hook with ``seen`` and keep only its result."""
        counter = seen._version_counter
        before = counter.value
        try:
            with no_grad():
                value = pair.pack(seen)
        except StopIteration as error:
            raise accidental_end("A pack hook of saved tensors") from error
        if counter.value != before:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as "
                "input to pack hook can not be modified by in-place operations as this can lead to "
                "unexpected side-effects."
            )
        if is_output:
            self.packed = PackedTensor(
                pair.unpack, value, self._requires_grad, None, self._output_nr
            )
            self._array = self._counter = None  # type: ignore[assignment]
        else:
            assert original is not None
            self.packed = PackedTensor.of_input(pair.unpack, value, original)
            self._tensor = None

    def array(self, owner: Node | None) -> Any:
        """The saved array.

        Args:
            owner: the Node that saved it; None if something else saved it as an input.

        Raises:
            RuntimeError: the tensor was changed in place since it was saved.
        """
        if self.packed is not None:
            with no_grad():
                return self.packed.unpacked()._array
        tensor = self._tensor
        if tensor is None:
            if self._counter.value != self._version:
                self._refuse(self._array, self._counter.value, owner, owner, self._output_nr)
            return self._array
        if tensor._version_counter.value != self._version:
            self._refuse(
                tensor._array,
                tensor._version_counter.value,
                owner,
                tensor._grad_fn,
                tensor._output_nr,
            )
        if tensor._grad_fn is None and not self._was_leaf:
            raise RuntimeError(_DETACHED)
        return tensor._array

    def unchanged_input(self) -> Tensor | None:
        """The saved tensor, if it is an input to which nothing has happened since; else None, and
        :meth:`tensor` says more."""
        tensor = self._tensor
        if (
            tensor is None
            or tensor._version_counter.value != self._version
            or (tensor._grad_fn is None and not self._was_leaf)
        ):
            return None
        return tensor

    def tensor(self, owner: Node | None) -> Tensor:
        """The saved tensor; outputs and unpacked tensors get their history back.

        Raises:
            RuntimeError: as :meth:`array`.
            TypeError: the unpack hook did not return a Tensor.
        """
        if self.packed is not None:
            return self.packed.tensor(owner)
        array = self.array(owner)
        if self._tensor is not None:
            return self._tensor
        return Tensor(
            array,
            requires_grad=self._requires_grad,
            grad_fn=owner if self._requires_grad else None,
            output_nr=self._output_nr,
            version_counter=self._counter,
        )

    def _refuse(
        self, array: Any, version: int, owner: Node | None, producer: Node | None, output_nr: int
    ) -> None:
        made = f", which is output {output_nr} of {producer.name()}" if producer else ""
        saver = f", saved by {owner.name()}" if owner else ""
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{array.dtype} {list(array.shape)}]{made}{saver}, is at version "
            f"{version}; expected version {self._version} instead. Hint: clone() the "
            "tensor before changing it, or enable anomaly detection to find the operation that "
            "failed to compute its gradient, with mg.autograd.set_detect_anomaly(True)."
        )


class PackedTensor:
    """The result of a pack hook, and the place in the graph of the packed tensor.

    Versions are not checked: the hook is responsible for what it keeps.
    """

    __slots__ = ("_accumulator", "_edge", "_output_nr", "_unpack", "_value", "requires_grad")

    def __init__(
        self,
        unpack: Callable[[Any], Tensor],
        value: Any,
        requires_grad: bool,
        edge: Edge | None,
        output_nr: int,
    ) -> None:
        self._unpack, self._value = unpack, value
        self.requires_grad = requires_grad
        #: The target of the gradient of an input that is no leaf.
        self._edge = edge
        self._output_nr = output_nr
        #: The AccumulateGrad of a leaf, which owns it: a strong reference would keep the memory.
        self._accumulator: weakref.ref[AccumulateGrad] | None = None

    @classmethod
    def of_input(cls, unpack: Callable[[Any], Tensor], value: Any, tensor: Tensor) -> PackedTensor:
        """For an input, whose history is known now (that of an output is its Node)."""
        if not tensor.requires_grad:
            return cls(unpack, value, False, None, 0)
        edge = gradient_edge(tensor)
        if tensor._grad_fn is not None:
            return cls(unpack, value, True, edge, edge[1])
        packed = cls(unpack, value, True, None, 0)
        packed._accumulator = tensor._accumulator
        return packed

    def unpacked(self) -> Tensor:
        """The result of the unpack hook.

        Raises:
            TypeError: it is not a Tensor.
        """
        value = self._unpack(self._value)
        if not isinstance(value, Tensor):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(value).__name__}"
            )
        return value

    def tensor(self, owner: Node | None) -> Tensor:
        """The unpacked tensor with the history of the packed one."""
        value = self.unpacked()
        if not self.requires_grad and not value._requires_grad:
            return value
        array, counter = value._array, value._version_counter
        if not self.requires_grad:
            return Tensor(array, version_counter=counter)
        if self._accumulator is not None:
            tensor = Tensor(array, requires_grad=True, version_counter=counter)
            tensor._accumulator = self._accumulator
            return tensor
        return Tensor(
            array,
            requires_grad=True,
            grad_fn=owner if self._edge is None else self._edge[0],
            output_nr=self._output_nr,
            version_counter=counter,
        )
