"""OperatorNode: the Node that a call of an operator leaves in the graph."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from mpgrad.recording.dispatch.saved_attributes import add_saved_attributes, saved_attribute_names
from mpgrad.recording.graph.node import FREED_MESSAGE, NATIVE, InputMetadata, Node
from mpgrad.recording.graph.registry import Operator
from mpgrad.recording.tensors.hooks_in_force import HOOKS
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.tensor import metadata_of, recorded_edges

#: Of all Nodes that save no tensor: a dictionary for each would take a tenth of their memory.
NOTHING_SAVED: Any = MappingProxyType({})


class OperatorNode(Node):
    """The recorded Node of an operator: its saved values and attributes.

    Each operator has a class of its own (see ``node_class``) with PyTorch's name.
    """

    __slots__ = ("_saved", "has_packed", "input_info", "plain")

    #: Its operator; the same for all Nodes of a class.
    operator: ClassVar[Operator]

    def __init__(self, inputs: Sequence[Any], needs: Sequence[bool]) -> None:
        edges, leaves = recorded_edges(inputs, needs)
        super().__init__(edges)
        self.leaves = leaves
        #: For each input the metadata of its gradient, or None if it gets none.
        self.input_info: tuple[InputMetadata | None, ...] = tuple(
            [
                metadata_of(value) if needed else None
                for value, needed in zip(inputs, needs, strict=True)
            ]
        )
        #: The parameters of the formulas that are not tensors: shapes, dtypes, attributes, scalars.
        self.plain: dict[str, Any] = {}
        self._saved: dict[str, Any] | None = {}
        self.has_packed = False

    @property
    def saved(self) -> dict[str, Any]:
        """Name -> SavedTensor, or a tuple of them (None in it: a scalar input).

        Raises:
            RuntimeError: an earlier backward has freed them.
        """
        if self._saved is None:
            raise RuntimeError(FREED_MESSAGE)
        return self._saved

    def saved_arrays(self) -> dict[str, Any]:
        """Name -> array (or tuple of arrays), versions checked.

        Raises:
            RuntimeError: an earlier backward has freed them, or one was changed in place.
        """
        if self._saved is None:
            raise RuntimeError(FREED_MESSAGE)
        found: dict[str, Any] = {}
        for name, value in self._saved.items():
            if type(value) is tuple:
                value = [v.array(self) if isinstance(v, SavedTensor) else v for v in value]
                found[name] = tuple(value)
            else:
                found[name] = value.array(self)
        return found

    def apply(self, xp: Any, grads: list[Any], needs: Sequence[bool]) -> list[Any]:
        return self.operator.backward(xp, grads, {**self.plain, **self.saved_arrays()}, needs)

    def release_saved(self) -> None:
        # A Node that saved nothing may run again, as in PyTorch.
        if self._saved:
            self._saved = None

    def note_hooks(self) -> None:
        """A value was saved while hooks are in force, perhaps on this thread."""
        self.has_packed = bool(self._saved) and HOOKS.innermost() is not None

    def __dir__(self) -> list[str]:
        known = [name for name in super().__dir__() if not name.startswith(("_saved_", "_raw_"))]
        return [*known, *saved_attribute_names(self)]


def node_class(
    operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any]
) -> type[OperatorNode]:
    """The class of the Node that records this call."""
    if not isinstance(operator.node_name, str):
        return _named_class(operator, operator.node_name(inputs, attributes))
    operator.node_class = _named_class(operator, operator.node_name)
    return operator.node_class


#: Nodes of mpgrad's operators that do not exist in PyTorch.
_NATIVE_NAMES = frozenset({"CopyBackwards", "CopySlices"})


@functools.cache
def _named_class(operator: Operator, name: str) -> type[OperatorNode]:
    prefix = NATIVE if name in _NATIVE_NAMES else ""
    members = {
        "__slots__": (),
        "operator": operator,
        "prefix": prefix,
        "passes_on": operator.passes_on,
    }
    made = type(name, (OperatorNode,), members)
    add_saved_attributes(made, operator)
    return made
