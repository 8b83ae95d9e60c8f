"""``grad_fn._saved_<name>`` and ``grad_fn._raw_saved_<name>``: the saved values of a Node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mpgrad.recording.graph.node import Node
from mpgrad.recording.tensors.saved_tensor import SavedTensor as _Saved
from mpgrad.recording.tensors.tensor import Tensor

if TYPE_CHECKING:
    from mpgrad.recording.dispatch.operator_node import OperatorNode
    from mpgrad.recording.graph.registry import Operator

_SAVED, _RAW = "_saved_", "_raw_saved_"

#: PyTorch's names of the first two inputs of nearly every operator.
_POSITIONS = {"self": 0, "other": 1}


class SavedTensorHandle:
    """One saved tensor of a Node, as users see it: ``mg.autograd.SavedTensor``."""

    __slots__ = ("_find", "_node")

    _node: Node
    _find: Callable[[], _Saved | None]

    def __new__(cls) -> SavedTensorHandle:
        raise RuntimeError("Trying to create a SavedTensor object from Python is forbidden.")

    @classmethod
    def of(cls, node: Node, find: Callable[[], _Saved | None]) -> SavedTensorHandle:
        """The handle of the result of ``find()`` in ``node``; it raises after that was freed."""
        handle = object.__new__(cls)
        handle._node, handle._find = node, find
        return handle

    def register_hooks(
        self,
        pack_hook: Callable[[Tensor], Any] | None = None,
        unpack_hook: Callable[[Any], Tensor] | None = None,
    ) -> None:
        """Pack this tensor now with ``pack_hook``, and unpack it whenever it is needed.

        Raises:
            TypeError: a hook is missing, or cannot be called.
            RuntimeError: the tensor has hooks already, was freed, or was never saved.
        """
        if not callable(pack_hook) or not callable(unpack_hook):
            raise TypeError(
                "register_hooks(): incompatible function arguments: it takes two callables, "
                "pack_hook and unpack_hook"
            )
        try:
            saved = self._find()
        except RuntimeError:
            raise RuntimeError(
                "Calling register_hooks on a saved tensor after it has been freed. Saved "
                "intermediate values of the graph are freed when you call .backward() or "
                "autograd.grad(). Specify retain_graph=True if you need to backward through the "
                "graph a second time or if you need to access saved variables after calling "
                "backward."
            ) from None
        if saved is None:
            raise RuntimeError(
                "Calling register_hooks on a saved tensor with value None is forbidden"
            )
        saved.register_hooks(pack_hook, unpack_hook)
        self._node.has_packed = True  # type: ignore[misc]  # a Node that saves has this slot

    def unpack(self) -> Tensor | None:
        """The tensor (see ``grad_fn._saved_<name>``); None if it was not needed."""
        saved = self._find()
        return None if saved is None else saved.tensor(self._node)


#: PyTorch's name of the class.
SavedTensor = SavedTensorHandle


def saved_attribute(node: OperatorNode, attribute: str) -> Any:
    """The value of ``node._saved_<name>`` or ``node._raw_saved_<name>``.

    A name is that of an input of the operator (its first two are ``self`` and ``other``, too), of
    an attribute, ``result``, or ``<input>_shape``.

    Raises:
        AttributeError: the operator saves no value of this name.
        RuntimeError: a backward has freed it, or it was changed in place.
    """
    raw = attribute.startswith(_RAW)
    name = _own_name(node, attribute.removeprefix(_RAW if raw else _SAVED))
    if name not in node.operator.wanted or (raw and name in node.plain):
        raise AttributeError(f"{node.name()!r} object has no attribute {attribute!r}")
    if name in node.plain:
        return node.plain[name]
    if raw:
        return _handles(node, name)
    value = node.saved.get(name)
    if isinstance(value, tuple):
        return tuple(v.tensor(node) if isinstance(v, _Saved) else v for v in value)
    return None if value is None else value.tensor(node)


def _own_name(node: OperatorNode, name: str) -> str:
    position = _POSITIONS.get(name)
    inputs = node.operator.inputs
    if position is None or name in inputs or position >= len(inputs):
        return name
    return inputs[position]


def _handles(node: OperatorNode, name: str) -> Any:
    value = (node._saved or {}).get(name)
    if not isinstance(value, tuple):
        return SavedTensorHandle.of(node, lambda: node.saved.get(name))
    return tuple(
        SavedTensorHandle.of(node, lambda index=index: node.saved[name][index])  # type: ignore[misc]
        for index in range(len(value))
    )


def saved_attribute_names(node: OperatorNode) -> Iterator[str]:
    """The names of saved values in ``dir(node)``."""
    for name in sorted(node.operator.wanted):
        yield _SAVED + name
        if name not in node.plain:
            yield _RAW + name


def add_saved_attributes(node_class: type[OperatorNode], operator: Operator) -> None:
    """Give ``node_class`` a property for each value that ``operator`` may save.

    A ``__getattr__`` would make every other attribute of every Node slower.
    """
    for name in (*operator.wanted, *_POSITIONS):
        for attribute in (_SAVED + name, _RAW + name):
            setattr(node_class, attribute, _property(attribute))


def _property(attribute: str) -> property:
    return property(lambda node: saved_attribute(node, attribute))


def function_handles(node: Node, find: Callable[[], Any], count: int) -> tuple[Any, ...]:
    """``grad_fn._raw_saved_tensors`` of a custom Function.

    Args:
        find: returns the saved tensors (SavedTensor or None); raises after they were freed.
        count: the number of them.
    """
    return tuple(
        SavedTensorHandle.of(node, lambda index=index: find()[index])  # type: ignore[misc]
        for index in range(count)
    )
