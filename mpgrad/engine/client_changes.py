"""What a task of the client has changed that workers may read.

A worker reads saved tensors where they lie, and Functions are sent to workers as the backward
begins. In the serial engine a hook, or a Function that stays in the client, may change a saved
tensor or a global before a later Node reads it. Workers do not see that, so it is an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from mpgrad.autograd.frozen_graphs.frozen_graph import FrozenGraph
from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.function_node import FunctionNode
from mpgrad.calls.custom_functions.run_on import what_changed
from mpgrad.engine.placement import Placed
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.storage import VersionCounter
from mpgrad.wire.captured_state import capture_state, name_of_change


class StaleSaved:
    """The saved tensors of one graph's Nodes on workers, by their memory.

    Their versions are checked at the submission. If a hook changes one of them later, the backward
    must fail as it does in the serial engine, if a Node that comes after the hook has saved it. If
    the Node comes before the hook, the serial engine would be right. Here a worker may not have
    read the old values yet, and an error is better than a wrong gradient.
    """

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


class ReadsOfWorkers:
    """What the Functions on workers of one graph read: globals, settings of the process.

    Args:
        placed: the graph, and the captured state of its Functions before user code ran.
    """

    def __init__(self, placed: Placed) -> None:
        self._frozen, self._code, self._captured = placed.frozen, placed.code, placed.captured
        #: By Function and the classes on its ctx, the last of its Nodes in serial order; made when
        #: user code has run.
        self._last: dict[tuple[Any, ...], int] | None = None
        self._positions: dict[int, int] = {}

    def check(self, node: int) -> None:
        """User code has run at ``node``.

        Raises:
            RuntimeError: a Function behind it in serial order reads what is not as it was.
        """
        if self._last is None:
            self._last = self._find_last()
        here = self._positions[node]
        later = [key for key, position in self._last.items() if position > here]
        if not later:
            return
        change = self._change_of_state()
        for function, *held in later:
            if changed := what_changed(function, tuple(held)) or change:
                raise RuntimeError(
                    f"{self._frozen.spec.nodes[node].name} ran in this process and has changed "
                    f"{changed}, which {function.__qualname__} reads behind it, on a worker that "
                    'does not see it. Change it before backward(), or set run_on = "client" on '
                    f"{function.__qualname__}"
                )

    def changed_by(self, own: Collection[int]) -> tuple[type[Function], str] | None:
        """What the Nodes ``own`` have changed here, and a Function that reads it on a worker."""
        nodes: Any = self._frozen.nodes
        elsewhere = {
            (nodes[at].function, code.held) for at, code in self._code.items() if at not in own
        }
        for function, held in elsewhere:
            if function.run_on is None and (what := what_changed(function, held)):
                return function, what
        return None

    def _change_of_state(self) -> str:
        """What has changed of what is brought along for all Functions, in words."""
        before, now = self._captured, capture_state()
        assert before is not None
        changed = "" if now.data == before.data else name_of_change(before.data, now.data)
        if not changed and now.numpy_errors != before.numpy_errors:
            changed = "what NumPy does about floating-point errors (np.seterr)"
        return changed or now.kept_here

    def _find_last(self) -> dict[tuple[Any, ...], int]:
        self._positions = {at: position for position, at in enumerate(self._frozen.spec.order)}
        nodes: Any = self._frozen.nodes
        last: dict[tuple[Any, ...], int] = {}
        for at, code in self._code.items():
            if nodes[at].function.run_on is None:  # else that is the user's promise
                key = (nodes[at].function, *code.held)
                last[key] = max(last.get(key, -1), self._positions[at])
        return last
