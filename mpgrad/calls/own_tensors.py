"""OwnTensors: mpgrad's tensors in calls (see ``array_library``)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np

from mpgrad.arrays.cuda.device_arrays import is_on_gpu
from mpgrad.autograd.backward import grad as gradients_of
from mpgrad.autograd.function import Function
from mpgrad.autograd.function_nodes.function_node import FunctionNode, branch_class
from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import HOOKS_OF_ALL, ArrayLibrary
from mpgrad.calls.branch import Branch
from mpgrad.calls.call import InputKind, Ran
from mpgrad.calls.custom_functions.installed_reads import hooks_of_all_modules
from mpgrad.calls.fork_function import Fork
from mpgrad.calls.unreached_leaves import lost_gradient
from mpgrad.ops.elementwise.arithmetic import add
from mpgrad.ops.generators import process_generator
from mpgrad.recording.dispatch.operator_node import OperatorNode
from mpgrad.recording.graph.anomaly import (
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from mpgrad.recording.graph.grad_modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from mpgrad.recording.graph.node import SEQUENCE, Node
from mpgrad.recording.tensors.accumulate_grad import AccumulateGrad
from mpgrad.recording.tensors.hooks_in_force import HOOKS, HookState
from mpgrad.recording.tensors.of_pytorch import is_tensor_of_pytorch
from mpgrad.recording.tensors.saved_tensor import SavedTensor
from mpgrad.recording.tensors.storage import INFERENCE, is_held_alone
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.wire.programs import ResultTensor

Array: TypeAlias = np.ndarray[Any, Any]

#: Unless they have hooks.
_WITHOUT_USER_CODE = (OperatorNode, AccumulateGrad)


class OwnTensors(ArrayLibrary):
    """mpgrad's tensors."""

    module = __name__
    #: What ``saved_inputs`` has found for ``nbytes``: the outputs by ``id``, and the bytes.
    _nbytes: tuple[int, int] | None = None
    tensor_class = Tensor

    # ------------------------------------------------------------------ inputs

    def require_fit(self, tensor: Tensor) -> None:
        if hasattr(type(tensor), "materialize"):
            raise TypeError(
                "cannot send a parameter of a lazy Module, whose shape is not known yet: run the "
                "Module once before (with mg.no_grad(): model(x))"
            )

    def require_own(self, obj: Any) -> None:
        if "torch" in sys.modules and is_tensor_of_pytorch(obj) and obj.requires_grad:
            raise TypeError(
                "cannot send a tensor of PyTorch that requires grad: it would get no gradient. Use "
                "parallel_map or fork of mpgrad.torch, or pass x.detach()"
            )

    def kind(self, tensor: Tensor, is_buffer: bool, name: str) -> InputKind:
        return InputKind(type(tensor), tensor.requires_grad, dict(vars(tensor)), is_buffer, name)

    def array(self, tensor: Tensor, is_buffer: bool) -> Array:
        return tensor._array.copy(order="K") if is_buffer else tensor._array

    def leaf(self, kind: InputKind, array: Array) -> Tensor:
        if kind.is_buffer:
            array = array.copy(order="K")
        elif array.flags.writeable and not is_on_gpu(array):
            array = array.view()
            array.flags.writeable = False
        tensor = Tensor(array, requires_grad=kind.requires_grad)
        if kind.cls is not Tensor:
            tensor.__class__ = kind.cls
        if kind.attributes:
            vars(tensor).update(kind.attributes)
        return tensor

    def is_on_gpu(self, tensor: Tensor) -> bool:
        return is_on_gpu(tensor._array)

    def is_held_elsewhere(self, tensor: Tensor) -> bool:
        return not is_held_alone(tensor._array)

    def version(self, tensor: Tensor) -> int:
        return tensor._version_counter.value

    def mark(self, tensor: Tensor) -> tuple[int, Array]:
        return tensor._version_counter.value, tensor._array

    def has_changed(self, tensor: Tensor, mark: Any) -> bool:
        version, array = mark
        return tensor._version_counter.value != version or tensor._array is not array

    def has_grad(self, leaf: Tensor) -> bool:
        return leaf._grad is not None and leaf._grad_fn is None

    def content(self, tensor: Tensor) -> bytes:
        found: bytes = tensor._array.tobytes()
        return found

    # ------------------------------------------------------------------ running

    def modes(self) -> tuple[bool, bool, bool, bool]:
        return (
            is_grad_enabled(),
            is_inference_mode_enabled(),
            is_anomaly_enabled(),
            is_anomaly_check_nan_enabled(),
        )

    def require_own_surroundings(self) -> None:
        if hooks_of_all_modules():
            raise RuntimeError(HOOKS_OF_ALL)

    @contextmanager
    def entered(self, modes: tuple[Any, ...]) -> Iterator[None]:
        grad, inference, anomaly, checks_nan = modes
        with ExitStack() as stack:
            if not engine_slot.is_worker:
                stack.enter_context(_without_saved_tensors_hooks())
            if inference:
                stack.enter_context(inference_mode())
            stack.enter_context(set_grad_enabled(grad))
            if anomaly:
                stack.enter_context(set_detect_anomaly(True, checks_nan))
            yield

    def draw(self) -> int:
        return int(process_generator().numpy().integers(1 << 62))

    def seed(self, drawn: int, index: int) -> None:
        bits = np.random.PCG64(np.random.SeedSequence((drawn, index)))
        process_generator()._numpy = np.random.Generator(bits)

    @contextmanager
    def generator_kept(self) -> Iterator[None]:
        ours = process_generator()
        before = ours._numpy
        try:
            yield
        finally:
            ours._numpy = before

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        return add(first, second)

    # ------------------------------------------------------------------ branches

    def nbytes(self, branch: Branch) -> int:
        known, self._nbytes = self._nbytes, None
        if known is None or known[0] != id(branch.outputs):
            return _nbytes(branch, saved_by(branch.outputs)[0])
        return known[1]

    def runs_user_code(self, branch: Branch) -> bool:
        return any(
            node.hooks is not None or node.has_packed or not isinstance(node, _WITHOUT_USER_CODE)
            for node in _nodes_behind(branch.outputs)
        )

    def saved_inputs(self, branch: Branch) -> list[int]:
        return self.used_inputs(branch)[0]

    def used_inputs(self, branch: Branch) -> tuple[list[int], list[int]]:
        numbers = {id(one._version_counter): number for number, one in enumerate(branch.inputs)}
        saved, leaves = saved_by(branch.outputs)
        if branch.made is not None:
            _require_known(leaves, branch)
        # A walk takes a tenth of the time of forward: ``nbytes``, asked next, needs no second one.
        self._nbytes = id(branch.outputs), _nbytes(branch, saved)
        found = {id(one.counter) for one in saved}
        reached = set(map(id, leaves))
        return [number for counter, number in numbers.items() if counter in found], [
            number
            for number, one in enumerate(branch.inputs)
            if one.requires_grad and id(one) not in reached
        ]

    def gradients(
        self, outputs: list[Any], inputs: list[Any], grads: list[Any], create_graph: bool
    ) -> Sequence[Tensor | None]:
        return gradients_of(
            outputs,
            inputs,
            grads,
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
        )

    # ------------------------------------------------------------------ results

    def laid_out(self, tensor: Tensor) -> tuple[Array, tuple[int, ...], tuple[int, ...], str]:
        array = tensor._array
        array = array if array.flags.forc else array.copy(order="K")
        return array, array.shape, array.strides, array.dtype.str

    def aliases(self, branch: Branch) -> list[int]:
        if not branch.outputs:
            return []
        counters = Counter([id(one._version_counter) for one in branch.outputs])
        counters.update({id(one._version_counter) for one in branch.inputs})
        found = [
            number
            for number, one in enumerate(branch.outputs)
            if counters[id(one._version_counter)] > 1 and one._version_counter is not INFERENCE
        ]
        # ``.data``, and arrays of NumPy inside a Function, have no counter in common.
        for number, one in enumerate(branch.outputs):
            array = one._array
            if array.base is None or number in found or is_on_gpu(array):
                continue
            others = [other for other in (*branch.outputs, *branch.inputs) if other is not one]
            if any(np.may_share_memory(array, other._array) for other in others):
                found.append(number)
        return found

    def frozen(self, tensor: Tensor) -> None:
        if not is_on_gpu(tensor._array):
            tensor._array.flags.writeable = False

    def opened(self, told: ResultTensor, data: Array | None) -> Tensor:
        if data is None:
            return Tensor(np.ndarray(told.shape, told.dtype))
        return Tensor(np.ndarray(told.shape, told.dtype, data.data, told.offset, told.strides))

    def copied(self, tensor: Tensor) -> Tensor:
        return Tensor(tensor._array.copy(order="K"))

    def state_of(self, leaf: Tensor) -> Any:
        if type(leaf) is Tensor and not leaf._requires_grad and not vars(leaf):
            return None
        return type(leaf), leaf._requires_grad, dict(vars(leaf)), leaf._grad

    def with_state(self, tensor: Tensor, state: Any) -> Tensor:
        tensor.__class__, tensor._requires_grad, attributes, tensor._grad = state
        vars(tensor).update(attributes)
        return tensor

    def write(self, buffer: Tensor, tensor: Tensor) -> None:
        with no_grad():
            buffer.copy_(tensor)

    def place(self, inputs: Sequence[Tensor], modes: tuple[Any, ...]) -> int:
        return SEQUENCE.next()

    def attach(self, ran: Ran, inputs: Sequence[Tensor], place: Any, fn: Any) -> Sequence[Tensor]:
        # An edge to what no output depends on would run, and free, the graph behind it.
        sources = [one.detach() if at in ran.unreached else one for at, one in enumerate(inputs)]
        with enable_grad():  # the call may have entered it
            outputs: tuple[Tensor, ...] = Fork.apply(ran, *sources)
        node = outputs[0]._grad_fn
        if node is not None:
            if place is not None:
                node.sequence_nr = place
            cls = _node_class_of(fn)
            if cls is not None:
                node.__class__ = cls
        return outputs


LIBRARY = OwnTensors()


def _node_class_of(fn: Any) -> type[FunctionNode] | None:
    """The class of the Nodes of ``fn``, if that is the ``apply`` of a Function."""
    function = getattr(fn, "__self__", None)
    if isinstance(function, type) and issubclass(function, Function) and fn.__name__ == "apply":
        return branch_class(function)
    return None


def _require_known(leaves: Sequence[Tensor], branch: Branch) -> None:
    """Check that the leaves of a branch are inputs, or were made by the call.

    Raises:
        RuntimeError: one is not.
    """
    known = {id(one) for one in (*branch.inputs, *branch.outputs)}
    for leaf in leaves:
        if leaf._requires_grad and id(leaf) not in known:
            noted = (branch.made or {}).get(id(leaf))
            if noted is None or noted() is not leaf:
                raise lost_gradient(leaf)


def _nodes_behind(outputs: Sequence[Tensor]) -> Iterator[Node]:
    """Each Node of the graph behind ``outputs``."""
    stack: list[Node] = [one._grad_fn for one in outputs if one._grad_fn is not None]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for edge in node.next_edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])


def saved_by(outputs: Sequence[Tensor]) -> tuple[list[SavedTensor], list[Tensor]]:
    """All that the graph behind ``outputs`` has saved, and its leaves."""
    found: list[Any] = []
    leaves: list[Tensor] = []
    for node in _nodes_behind(outputs):
        if isinstance(node, OperatorNode):
            for value in (node._saved or {}).values():
                if type(value) is tuple:
                    found += value
                else:
                    found.append(value)
        elif isinstance(node, FunctionNode):
            found += node.ctx._saved or ()
        elif isinstance(node, AccumulateGrad):
            leaves.append(node.variable)
    # What hooks have packed is theirs.
    saved = [one for one in found if isinstance(one, SavedTensor) and one.packed is None]
    return saved, [one for one in leaves if one is not None]


def _nbytes(branch: Branch, saved: Sequence[SavedTensor]) -> int:
    held = {id(output._array): output._array.nbytes for output in branch.outputs}
    for one in saved:
        array = one._array if one._tensor is None else one._tensor._array
        if array is not None:
            held[id(array)] = array.nbytes
    return sum(held.values())


@contextmanager
def _without_saved_tensors_hooks() -> Iterator[None]:
    """The caller's hooks are for what its own Nodes save, as where a worker records the branch."""
    before, HOOKS.thread.state = HOOKS.thread.state, HookState()
    try:
        yield
    finally:
        HOOKS.thread.state = before
