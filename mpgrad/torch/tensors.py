"""TorchTensors: torch's tensors in calls (see ``mpgrad.calls.array_library``)."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from mpgrad.autograd.running import engine_slot
from mpgrad.calls.array_library import ArrayLibrary
from mpgrad.calls.branch import Branch
from mpgrad.calls.call import InputKind, Ran
from mpgrad.calls.preloading import LIBRARIES
from mpgrad.calls.random_numbers import GENERATORS, GeneratorKind
from mpgrad.parallel import placing
from mpgrad.recording.tensors.tensor import Tensor
from mpgrad.torch import branch_nodes
from mpgrad.torch.memory import (
    Layout,
    bytes_of,
    layout_of,
    nbytes_of,
    resident_bytes,
    snapshot,
    tensor_over,
)
from mpgrad.torch.modes import Modes, current_modes, entered, require_no_others
from mpgrad.torch.shared_parameters import SharedParameters
from mpgrad.torch.shared_results import SharedResult
from mpgrad.wire.programs import ResultTensor

Array: TypeAlias = np.ndarray[Any, Any]

#: A branch gets inputs of at most these bytes as copies. It cannot write the memory of larger ones.
COPIED_BYTES_MAX = 64 << 10

#: Those of this process.
PARAMETERS = SharedParameters()

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class TorchTensors(ArrayLibrary):
    """torch's tensors, on the CPU."""

    module = __name__
    tensor_class = torch.Tensor

    # ------------------------------------------------------------------ inputs

    def require_fit(self, tensor: torch.Tensor) -> None:
        problem = _why_not(tensor)
        if problem:
            raise TypeError(f"mpgrad.torch cannot send {problem}")

    def reduced(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            raise TypeError(
                "mpgrad.torch cannot send a tensor of mpgrad itself: it would get no gradient. "
                "Pass its .numpy()"
            )
        if isinstance(obj, torch.nn.Module) and parametrize.is_parametrized(obj):
            # torch refuses, because the class is made at run time; here it travels by value.
            return copyreg.__newobj__, (type(obj),), vars(obj)  # type: ignore[attr-defined]
        if isinstance(obj, torch._ops.OpOverload):
            return getattr, (obj.overloadpacket, obj._overloadname)
        if isinstance(obj, torch._ops.OpOverloadPacket):
            namespace, name = obj._qualified_op_name.split("::")
            return getattr, (getattr(torch.ops, namespace), name)
        return NotImplemented

    def kind(self, tensor: torch.Tensor, is_buffer: bool, name: str) -> InputKind:
        found = vars(tensor)
        attributes = {k: v for k, v in found.items() if _is_plain(v)} if found else {}
        needs = tensor.requires_grad
        cls = torch.Tensor if type(tensor) is SharedResult else type(tensor)
        return InputKind(cls, needs, attributes, is_buffer, name, layout_of(tensor))

    def array(self, tensor: torch.Tensor, is_buffer: bool) -> Array:
        layout = layout_of(tensor)
        if isinstance(tensor, torch.nn.Parameter) and not is_buffer and placing.mode() != "local":
            found = PARAMETERS.array(tensor, layout)
            if found is not None:
                return found
        return snapshot(tensor, layout)

    def is_live(self, array: Array) -> bool:
        return PARAMETERS.is_shared(array)

    def leaf(self, kind: InputKind, array: Array) -> torch.Tensor:
        if kind.is_buffer or array.nbytes <= COPIED_BYTES_MAX:
            array = array.copy()
        tensor = tensor_over(array, kind.layout)
        if kind.cls is torch.nn.Parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad=kind.requires_grad)
        elif kind.requires_grad:
            tensor.requires_grad_()
        if kind.attributes:
            vars(tensor).update(kind.attributes)
        return tensor

    def version(self, tensor: torch.Tensor) -> int:
        return 0 if tensor.is_inference() else tensor._version

    def mark(self, tensor: torch.Tensor) -> tuple[int, int]:
        return self.version(tensor), tensor.data_ptr()

    def has_changed(self, tensor: torch.Tensor, mark: Any) -> bool:
        return self.mark(tensor) != mark

    def has_grad(self, leaf: torch.Tensor) -> bool:
        return leaf.is_leaf and leaf.grad is not None

    def content(self, tensor: torch.Tensor) -> bytes:
        return bytes_of(tensor, layout_of(tensor)).tobytes()

    # ------------------------------------------------------------------ running

    def require_own_surroundings(self) -> None:
        require_no_others()

    def modes(self) -> Modes:
        return current_modes()

    def entered(self, modes: tuple[Any, ...]) -> AbstractContextManager[None]:
        return entered(Modes(*modes))

    def draw(self) -> int:
        with torch._C._DisableFuncTorch():  # vmap would refuse it before it is told what to do
            return int(torch.empty((), dtype=torch.int64, device="cpu").random_())

    def seed(self, drawn: int, index: int) -> None:
        # The generator takes 32 bits. The items of a call have different ones.
        torch.default_generator.manual_seed((drawn + index + 0x9E3779B9 * (index >> 32)) % 2**32)

    @contextmanager
    def generator_kept(self) -> Iterator[None]:
        before = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(before)

    def add(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second

    def held(self) -> int:
        return resident_bytes()

    # ------------------------------------------------------------------ branches

    def nbytes(self, branch: Branch) -> int:
        outputs = sum([nbytes_of(layout_of(output)) for output in branch.outputs])
        return max(branch.grown, outputs)

    def saved_inputs(self, branch: Branch) -> list[int]:
        storages = {
            one.untyped_storage().data_ptr(): number
            for number, one in enumerate(branch.inputs)
            if one.numel()
        }
        saved = set(map(_storage, _saved_by(branch.outputs)))
        if None in saved:
            return [*range(len(branch.inputs))]
        return sorted({storages[one] for one in saved if one in storages})

    def used_inputs(self, branch: Branch) -> tuple[Sequence[int], Sequence[int]]:
        # What is saved is asked for when an input has changed, which is rare.
        reached = set(map(id, _leaves_behind(branch.outputs)[0]))
        needing = [at for at, one in enumerate(branch.inputs) if one.requires_grad]
        return (), [at for at in needing if id(branch.inputs[at]) not in reached]

    def standing_leaves(self, branch: Branch) -> list[torch.Tensor]:
        known = set(map(id, (*branch.inputs, *branch.outputs)))
        leaves, counts = _leaves_behind(branch.outputs)
        return [
            leaf
            for leaf, count in zip(leaves, counts, strict=True)
            if count > _REFERENCES and id(leaf) not in known
        ]

    def aliases(self, branch: Branch) -> list[int]:
        spans = [_span(one) for one in (*branch.outputs, *branch.inputs)]
        found = []
        for number, (first, last) in enumerate(spans[: len(branch.outputs)]):
            others = [*spans[:number], *spans[number + 1 :]]
            if first < last and any(start < last and first < end for start, end in others):
                found.append(number)
        return found

    def gradients(
        self, outputs: list[Any], inputs: list[Any], grads: list[Any], create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        return torch.autograd.grad(
            outputs, inputs, grads, retain_graph=True, create_graph=create_graph, allow_unused=True
        )

    def taken_apart(self, gradient: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
        if gradient.layout != torch.sparse_coo:
            self.require_fit(gradient)
            return None, [gradient]
        form = tuple(gradient.shape), gradient.is_coalesced()
        return form, [gradient._indices(), gradient._values()]

    def put_together(self, form: Any, parts: list[torch.Tensor]) -> torch.Tensor:
        if form is None:
            return parts[0]
        shape, is_coalesced = form
        indices, values = [one.clone() for one in parts]
        return torch.sparse_coo_tensor(
            indices, values, shape, is_coalesced=is_coalesced, check_invariants=False
        )

    # ------------------------------------------------------------------ results

    def laid_out(self, tensor: torch.Tensor) -> tuple[Array, tuple[int, ...], tuple[int, ...], str]:
        layout = layout_of(tensor)
        dtype, shape, strides = layout
        return bytes_of(tensor, layout), shape, strides, dtype

    def frozen(self, tensor: torch.Tensor) -> None:
        tensor.__class__ = SharedResult

    def opened(self, told: ResultTensor, data: Array | None) -> torch.Tensor:
        layout: Layout = (told.dtype, told.shape, told.strides)
        nbytes = nbytes_of(layout)
        if data is None or not nbytes:
            return tensor_over(np.empty(0, np.uint8), layout)
        return tensor_over(data[told.offset : told.offset + nbytes], layout)

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        layout = layout_of(tensor)
        return tensor_over(bytes_of(tensor, layout).copy(), layout)

    def state_of(self, leaf: torch.Tensor) -> Any:
        is_parameter, grad = isinstance(leaf, torch.nn.Parameter), leaf.grad
        if not is_parameter and not leaf.requires_grad and grad is None:
            return None
        return is_parameter, leaf.requires_grad, grad

    def with_state(self, tensor: torch.Tensor, state: Any) -> torch.Tensor:
        is_parameter, requires_grad, grad = state
        if is_parameter and type(tensor) is SharedResult:
            tensor._is_param = True  # type: ignore[attr-defined]
        elif is_parameter:
            tensor.__class__ = torch.nn.Parameter
        tensor.requires_grad_(requires_grad)
        tensor.grad = grad
        return tensor

    def write(self, buffer: torch.Tensor, tensor: torch.Tensor) -> None:
        with torch.no_grad():
            buffer.copy_(tensor)

    def place(self, inputs: Sequence[torch.Tensor], modes: tuple[Any, ...]) -> Any:
        return branch_nodes.BranchPlace.here() if modes[0] else None

    def attach(
        self, ran: Ran, inputs: Sequence[torch.Tensor], place: Any, fn: Any
    ) -> Sequence[torch.Tensor]:
        with torch.enable_grad():
            # An edge to what no output depends on would call its hooks, and run and free the graph
            # behind it.
            sources = [
                one.detach() if at in ran.unreached else one for at, one in enumerate(inputs)
            ]
            branch = branch_nodes.ForkedBranch(sources, self.version)
            branch.take_place(place or branch_nodes.BranchPlace.here())
            return branch.attach(ran, self)


LIBRARY = TorchTensors()
GENERATORS.append(
    GeneratorKind(
        torch.Generator,
        lambda one: one.get_state().numpy().tobytes(),
        lambda one, new: one.set_state(torch.frombuffer(bytearray(new), dtype=torch.uint8)),
    )
)

if engine_slot.is_worker:
    torch.set_num_threads(1)
else:
    LIBRARIES.append(__name__)


def _is_plain(value: Any) -> bool:
    """Whether an attribute of a tensor travels with it: texts, numbers, and what holds such."""
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _why_not(tensor: torch.Tensor) -> str:
    """What a tensor is that cannot travel, and the remedy; empty: it can."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor inside of torch.func: call parallel_map outside of vmap and grad"
    if is_lazy(tensor):
        return "a parameter of a lazy Module: run the Module once before"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, SharedResult):
        name = type(tensor).__qualname__
        return f"a tensor of the class {name}: pass x.as_subclass(torch.Tensor)"
    if tensor.is_nested:
        return "a nested tensor: pass x.unbind(), a list of tensors"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}: pass x.to_dense(), or its indices and values"
    if tensor.is_quantized:
        return "a quantized tensor: pass x.int_repr(), its scale and its zero point"
    if tensor.device.type != "cpu":
        return f"a tensor on {tensor.device}: workers compute on the CPU; pass x.cpu()"
    return ""


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first element, and behind the last one; equal if there are none."""
    start = tensor.data_ptr()
    layout = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride()
    return start, start + nbytes_of(layout) if start else 0


def _storage(tensor: torch.Tensor) -> int | None:
    """The address of the memory of what is saved, 0 if it has none; None: it is not known."""
    if tensor._is_zerotensor():  # of forward derivatives
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a sparse tensor, or one inside of torch.func
        return None


def _leaves_behind(outputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
    """The leaves of the graph behind ``outputs``, and how many references there are to each."""
    stack = [one.grad_fn for one in outputs if one.grad_fn is not None]
    seen, leaves = set(stack), []
    while stack:
        node = stack.pop()
        following = node.next_functions
        if not following and hasattr(node, "variable"):
            leaves.append(node.variable)
        for one, _ in following:
            if one is not None and one not in seen:
                seen.add(one)
                stack.append(one)
    return leaves, [sys.getrefcount(leaves[at]) for at in range(len(leaves))]


#: Those to a leaf that its graph alone holds.
_REFERENCES = _leaves_behind([torch.ones((), requires_grad=True).exp()])[1][0]


#: Whether a saved tensor says which hooks it has. Older releases of PyTorch only unpack it, so that
#: such hooks inside of a branch run once more.
KNOWS_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")


def _saved_by(outputs: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors that the graph behind ``outputs`` has saved; not those that hooks have packed,
    whose unpacking is user code."""
    stack = [one.grad_fn for one in outputs if one.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        for name in dir(node):
            if not name.startswith("_raw_saved_"):
                continue
            found = getattr(node, name if KNOWS_HOOKS else name.removeprefix("_raw"))
            for saved in found if isinstance(found, tuple | list) else (found,):
                tensor = saved
                if KNOWS_HOOKS:
                    is_packed = saved is None or saved.unpack_hook is not None
                    tensor = None if is_packed else saved.data
                if isinstance(tensor, torch.Tensor):
                    yield tensor
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
