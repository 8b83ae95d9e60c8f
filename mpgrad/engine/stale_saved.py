"""StaleSaved: finds saved arrays that a client task changes in place while workers may read them.

A worker reads saved tensors where they lie; their versions are checked at the hand-over. If a hook
changes one of them later, the backward must fail as it does in the serial engine, if a Node that
comes after the hook has saved it. If the Node comes before the hook, the serial engine would be
right. Here a worker may not have read the old values yet, and an error is better than a wrong
gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.autograd.functions.function_node import FunctionNode
from mpgrad.dispatch.operator_node import OperatorNode
from mpgrad.tensors.saved_tensor import SavedTensor
from mpgrad.tensors.storage import VersionCounter


class StaleSaved:
    """The saved tensors of one graph's Nodes on workers, by their memory."""

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
        """Raise if a worker may read a tensor that client task ``node`` has changed.

        Raises:
            RuntimeError: the error that the serial engine would raise for that Node; or
                it is unknown whether a worker has read it.
        """
        savers = {index for counter in changed for index in self._savers.get(id(counter), ())}
        for index in sorted(savers, key=self._position.__getitem__):
            saver = self._frozen.nodes[index]
            if self._position[index] > self._position[node]:
                for saved in _saved_tensors(saver):
                    saved.array(saver)
            elif not self._comes_before(index, node):
                raise RuntimeError(
                    "a hook or Function of this process changed a tensor in place that "
                    f"{saver.name()} has saved, and a worker may not have read it yet. clone() the "
                    "tensor before changing it, or run this backward in Engine('local')."
                )

    def _comes_before(self, first: int, node: int) -> bool:
        """Whether ``node`` depends on the output of ``first``, so that ``first`` is done."""
        edges, last = self._frozen.spec.nodes, self._position[node]
        seen, pending = {first}, [first]
        while pending:
            for target in edges[pending.pop()].edges:
                if target is not None and target[0] not in seen:
                    if target[0] == node:
                        return True
                    if self._position[target[0]] < last:
                        seen.add(target[0])
                        pending.append(target[0])
        return False


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
