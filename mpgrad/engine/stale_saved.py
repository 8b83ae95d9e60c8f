"""What client tasks change in place while workers hold saved arrays, and who notices.

A worker reads saved tensors where they lie, and their versions were checked when they were handed
over. A hook that changes one later than that must fail the backward as it does in the serial
engine: if a Node that comes after the hook has saved it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mpgrad.autograd.freeze import FrozenGraph
from mpgrad.autograd.function_node import FunctionNode
from mpgrad.autograd.saved_tensor import SavedTensor
from mpgrad.dispatch import OperatorNode
from mpgrad.storage import VersionCounter


class StaleSaved:
    """The saved tensors of one graph's Nodes that workers run, by their memory."""

    def __init__(self, frozen: FrozenGraph) -> None:
        self._frozen = frozen
        self._position = {index: at for at, index in enumerate(frozen.spec.order)}
        self._savers: defaultdict[int, list[int]] = defaultdict(list)
        for index, node in enumerate(frozen.nodes):
            if frozen.runs[index] and not frozen.spec.nodes[index].on_client:
                for saved in _saved_tensors(node):
                    if saved.packed is None:
                        self._savers[id(saved.counter)].append(index)

    def check(self, node: int, changed: list[VersionCounter]) -> None:
        """Raise if a Node after ``node`` in the serial order has saved what was ``changed``.

        Raises:
            RuntimeError: as that Node would, run by the serial engine.
        """
        after = [
            index
            for counter in changed
            for index in self._savers.get(id(counter), ())
            if self._position[index] > self._position[node]
        ]
        for index in sorted(after, key=self._position.__getitem__):
            saver = self._frozen.nodes[index]
            for saved in _saved_tensors(saver):
                saved.array(saver)


def _saved_tensors(node: object) -> Iterator[SavedTensor]:
    if isinstance(node, OperatorNode):
        values = list((node._saved or {}).values())
    elif isinstance(node, FunctionNode):
        values = [node.ctx._saved or ()]
    else:
        return
    for value in values:
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, SavedTensor):
                yield item
