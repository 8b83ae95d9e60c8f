"""Handover: what a GraphTask's workers need to read, packed: programs, saved arrays, user code.

Arrays in the client's arena travel as offsets. Any other array is copied, once per hand-over, and
the copies are counted. Everything packed stays alive until ``close``.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import cloudpickle
import numpy as np

from mpgrad.autograd.anomaly_mode import mode as anomaly
from mpgrad.autograd.frozen_graph import FrozenGraph
from mpgrad.autograd.functions.function_node import FunctionNode, PortableContext
from mpgrad.autograd.nodes.node import InputMetadata
from mpgrad.autograd.shipping.decision import ShippedCode
from mpgrad.device_arrays import is_on_gpu
from mpgrad.dispatch import OperatorNode
from mpgrad.engine.device_handover import DeviceHandover
from mpgrad.engine.learning import wants_times
from mpgrad.engine.prepared import PreparedGraph
from mpgrad.errors import ProtocolError
from mpgrad.handles import (
    CLIENT_ARENA,
    CLIENT_DEVICE_ARENA,
    INLINE_LIMIT_BYTES,
    Block,
    GradientRef,
    TensorHandle,
)
from mpgrad.shm.arena import ForeignArena, client_arena
from mpgrad.shm.lease import byte_bounds
from mpgrad.storage import adopt
from mpgrad.wire.programs import (
    CaptureRule,
    FunctionRule,
    InlineArray,
    NodeProgram,
    OperatorRule,
    PackedArray,
    Rule,
    SharedArray,
    TaskProgram,
    encode_plain,
    encode_program,
)

Array: TypeAlias = np.ndarray[Any, Any]

T = TypeVar("T")

_NO_RULE = CaptureRule()


class Handover:
    """One GraphTask's packed data."""

    def __init__(self) -> None:
        self._arena = client_arena()
        #: Where earlier gradients lie, which a double backward hands over again.
        self.engine_arena: ForeignArena | None = None
        self._kept: list[Any] = []
        #: Packed arrays by identity: many Nodes save the same one.
        self._packed: dict[int, PackedArray] = {}
        #: Whether the workers shall say when each Node ran: all, or where that teaches something.
        self.is_timed = self.learns = False
        self._numpy_errors = _changed_numpy_errors()
        #: The way to the GPUs' workers, if there are some.
        self.devices: DeviceHandover | None = None
        self.handed_bytes = 0
        self.copied_bytes = 0

    def close(self, *, is_complete: bool = False) -> None:
        """Nobody is told to read any more; ``is_complete``: and what was read gave results."""
        if self.devices is not None:
            self.devices.close(is_complete=is_complete)
        self._kept.clear()
        self._packed.clear()

    # ------------------------------------------------------------------ arrays

    def array(self, array: Array) -> PackedArray:
        """A reference to ``array``, or a copy of it where it lies outside the arena."""
        found = self._packed.get(id(array))
        if found is None:
            found = self._packed[id(array)] = self._pack(array)
            self._kept.append(array)
        return found

    def _pack(self, array: Array) -> PackedArray:
        self.handed_bytes += array.nbytes
        if self.devices is not None and is_on_gpu(array):
            before = self.devices.copied_bytes
            packed = SharedArray(self.devices.handle(array))
            self.copied_bytes += self.devices.copied_bytes - before
            return packed
        for arena in (self._arena, self.engine_arena):
            if arena is None:
                continue
            place = arena.locate(array)
            if place is not None:
                return _shared(array, *place, arena.number)
        self.copied_bytes += array.nbytes
        if array.flags.c_contiguous and array.nbytes > INLINE_LIMIT_BYTES:
            copy = self._copy(array)
            return _shared(copy, *self._located(copy))
        data, offset = _span(array)
        if len(data) <= INLINE_LIMIT_BYTES:
            return InlineArray(array.shape, array.strides, array.dtype.str, offset, data)
        start, block, generation = self._located(self._store(data))
        return _shared(array, start + offset, block, generation)

    def gradient(self, array: Array | None) -> GradientRef:
        """A C-contiguous gradient that flows into the graph from here (a seed, a hook's result)."""
        if array is None:
            return None
        if self.devices is not None and is_on_gpu(array):
            return self.devices.publish(array)
        if array.nbytes <= INLINE_LIMIT_BYTES:
            return array.tobytes()
        place = self._arena.locate(array)
        if place is None or place[0] != place[1]:
            self.copied_bytes += array.nbytes
            array = self._copy(array)
            place = self._located(array)
        self._kept.append(array)
        return Block(CLIENT_ARENA, place[1], array.nbytes, place[2])

    def open(self, ref: GradientRef, meta: InputMetadata) -> Array | None:
        """A copy of a gradient that came inside a message, or that this client handed over."""
        shape, dtype, _ = meta
        if ref is None:
            return None
        if isinstance(ref, Block) and ref.arena >= CLIENT_DEVICE_ARENA:
            return self._device_copy(ref, meta)
        if isinstance(ref, bytes):
            try:
                return np.ndarray(shape, dtype, ref).copy()
            except TypeError as error:
                raise ProtocolError(f"a gradient of {len(ref)} bytes: {error}") from None
        return adopt(self._arena.open(ref, shape, dtype, writeable=False))

    def _device_copy(self, block: Block, meta: InputMetadata) -> Any:
        if self.devices is None:
            raise ProtocolError(f"a gradient on a GPU, of an engine that has none: {block}")
        return self.devices.copy(block, meta)

    def _copy(self, array: Array) -> Array:
        """``array`` in the arena, whatever its size."""
        copy = self._arena.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        self._kept.append(copy)
        return copy

    def _store(self, data: bytes) -> Array:
        """``data`` in a block of the arena."""
        block = self._arena.empty((max(len(data), 1),), np.uint8)
        block[: len(data)] = np.frombuffer(data, np.uint8)
        self._kept.append(block)
        return block

    def _located(self, array: Array) -> tuple[int, int, int]:
        place = self._arena.locate(array)
        if place is None:
            raise RuntimeError("an array that was just made in the arena does not lie in it")
        return place

    # ------------------------------------------------------------------ programs

    def programs(
        self, frozen: FrozenGraph, graph: PreparedGraph, tasks: range, code: dict[int, ShippedCode]
    ) -> list[tuple[int, int]]:
        """Write the programs of some tasks; for each the offset and length of its own.

        Args:
            frozen: the graph.
            graph: its plan.
            tasks: which; those of the client need no program.
            code: by node index, the code of each Function that a worker runs.
        """
        encoded = [
            b""
            if graph.plan.tasks[task].on_client
            else encode_program(self._program(frozen, graph, task, code))
            for task in tasks
        ]
        start = self._located(self._store(b"".join(encoded)))[0]
        payloads = []
        for data in encoded:
            payloads.append((start, len(data)))
            start += len(data)
        return payloads

    def _program(
        self, frozen: FrozenGraph, graph: PreparedGraph, task: int, code: dict[int, ShippedCode]
    ) -> TaskProgram:
        members = graph.plan.groups[task]
        nodes = [
            NodeProgram(
                _NO_RULE if member.piece_of is not None else self._rule(frozen, member.node, code),
                wiring,
            )
            for member, wiring in zip(members, graph.wirings(frozen, task), strict=True)
        ]
        slots = graph.plan.slots[task]
        is_timed = self.is_timed or (self.learns and wants_times(members))
        return TaskProgram(
            tuple(nodes),
            slots,
            anomaly.checks_nan,
            is_timed,
            self._numpy_errors,
            graph.plan.joins[task],
        )

    def _rule(self, frozen: FrozenGraph, index: int, code: dict[int, ShippedCode]) -> Rule:
        node = frozen.nodes[index]
        if not frozen.runs[index]:
            return _NO_RULE
        if isinstance(node, OperatorNode):
            return self._operator(node, _read(node.saved_arrays))
        if isinstance(node, FunctionNode):
            return self._function(node, _read(node.portable_context), code[index])
        raise TypeError(f"{node.name()} cannot be sent to a worker")

    def _operator(self, node: OperatorNode, arrays: dict[str, Any]) -> OperatorRule:
        saved: dict[str, PackedArray] = {}
        several: dict[str, tuple[PackedArray | None, ...]] = {}
        plain = node.plain
        for name, value in arrays.items():
            if isinstance(value, tuple):
                is_array = [isinstance(v, np.ndarray) or is_on_gpu(v) for v in value]
                several[name] = tuple(
                    self.array(v) if here else None for v, here in zip(value, is_array, strict=True)
                )
                if not all(is_array):
                    scalars = tuple(
                        None if here else v for v, here in zip(value, is_array, strict=True)
                    )
                    plain = {**plain, name: scalars}
            else:
                saved[name] = self.array(value)
        return OperatorRule(
            node.operator.name, saved, several, encode_plain(plain) if plain else b""
        )

    def _function(
        self, node: FunctionNode, context: PortableContext, code: ShippedCode
    ) -> FunctionRule:
        buffers: list[PackedArray] = []

        def out_of_band(buffer: Any) -> None:
            buffers.append(self.array(np.frombuffer(buffer.raw(), np.uint8)))

        state = (
            dict(context.attributes),
            tuple(item is not None and item.requires_grad for item in context.saved),
            context.needs_input_grad,
            context.materialize_grads,
            context.inputs,
            context.outputs,
        )
        try:
            if all(type(value) in _SCALARS for value in context.attributes.values()):
                pickled = pickle.dumps(state, protocol=5)
            else:
                pickled = cloudpickle.dumps(state, protocol=5, buffer_callback=out_of_band)
        except Exception as error:
            raise TypeError(
                f"{node.name()} cannot be sent to a worker: what its ctx holds cannot be pickled "
                f"({error}). Set run_on = 'client' on the Function, or keep it off ctx"
            ) from error
        return FunctionRule(
            code.code_id,
            self.array(_bytes_of(code)),
            tuple(None if item is None else self.array(item.array) for item in context.saved),
            pickled,
            tuple(buffers),
        )


#: Nothing in them needs cloudpickle, which takes five times as long.
_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})


class SavedTensorsUnreadable(Exception):
    """Some Node's saved tensors were freed, or changed in place; the cause says it."""


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except RuntimeError as error:
        raise SavedTensorsUnreadable from error


_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def _changed_numpy_errors() -> dict[str, str]:
    """How this thread handles floating-point errors, where that is not NumPy's own way.

    A callback of the user cannot be called on a worker, nor what it prints be ordered: it warns.
    """
    actions: dict[str, Any] = {**np.geterr()}
    return {
        kind: "warn" if action in ("call", "log", "print") else action
        for kind, action in actions.items()
        if action != _NUMPY_ERRORS[kind]
    }


#: The bytes of shipped code as arrays in the arena, by content: the same code is written once.
_code_arrays: dict[str, Array] = {}


def _bytes_of(code: ShippedCode) -> Array:
    array = _code_arrays.get(code.code_id)
    if array is None:
        array = client_arena().empty((len(code.blob),), np.uint8)
        array[:] = np.frombuffer(code.blob, np.uint8)
        _code_arrays[code.code_id] = array
    return array


def _shared(
    array: Array, offset: int, block: int, generation: int, arena: int = CLIENT_ARENA
) -> SharedArray:
    layout = (array.shape, array.strides, array.dtype.str)
    return SharedArray(TensorHandle(arena, offset, block, generation, *layout))


def _span(array: Array) -> tuple[bytes, int]:
    """All bytes from the lowest to the highest address of ``array``, and where element 0 is.

    Gaps travel too, so that the strides on the other side are exactly the same.
    """
    if array.flags.c_contiguous:
        return array.tobytes(), 0
    address = array.__array_interface__["data"][0]
    low, high = byte_bounds(address, array.shape, array.itemsize, array.strides)
    return ctypes.string_at(low, high - low), address - low
