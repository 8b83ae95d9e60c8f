"""The payload of a NodeTask: the rules, their saved arrays, and how the Nodes are connected.

The client writes it into its arena and the worker reads it there, or it travels inside the messages
if it is short; the coordinator passes it on and never looks. Arrays are exact: strides are sent,
too, because NumPy and BLAS may round differently for another memory layout.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mpgrad.base.device import Device
from mpgrad.base.dtype import DType
from mpgrad.base.handles import TensorHandle
from mpgrad.errors import ProtocolError
from mpgrad.recording.graph.node import InputMetadata


class SharedArray(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """An array in an arena."""

    handle: TensorHandle


class InlineArray(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A small array: the bytes from its lowest to its highest address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    #: The offset of element 0 in ``data``.
    offset: int
    data: bytes


PackedArray: TypeAlias = SharedArray | InlineArray


class OperatorRule(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A registered operator with the saved values of its Node."""

    operator: str
    saved: dict[str, PackedArray]
    #: For variadic inputs; None stands for a scalar, which is in ``plain``.
    several: dict[str, tuple[PackedArray | None, ...]]
    #: Shapes, dtypes, attributes: see encode_plain; empty if there are none.
    plain: bytes


class FunctionRule(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A user's Function: its code by content, its ctx pickled with the arrays out of band."""

    code_id: str
    code: PackedArray
    saved: tuple[PackedArray | None, ...]
    #: The ctx's ContextDescription: the same bytes in each step of a training loop.
    description: bytes
    #: The attributes that the user has set on the ctx; empty if there are none.
    attributes: bytes
    buffers: tuple[PackedArray, ...]
    #: The number of its Node in the graph.
    node: int = -1
    #: Whether the worker sends a FunctionRun with the arguments and the results.
    is_told: bool = False


class CaptureRule(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """No rule: the node's inputs are captured unchanged (AccumulateGrad, ``grad()`` inputs)."""


class CallItem(msgspec.Struct, frozen=True, array_like=True):
    """See ``calls.call.Item``."""

    data: bytes
    buffers: tuple[PackedArray, ...]
    number: int


class CallRule(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A function that the client wants to be called, and its branch recorded (``calls.call``).

    The task has two outputs: what the function has returned (``CallAnswer``), and the bytes of the
    tensors in it.
    """

    number: int
    name: bytes
    code: PackedArray
    code_buffers: tuple[PackedArray, ...]
    items: tuple[CallItem, ...]
    #: What the inputs are, pickled; the same bytes in each step of a training loop.
    kinds: bytes
    #: The arrays of the inputs; None for one that is not known any more.
    inputs: tuple[PackedArray | None, ...]
    is_sum: bool
    seed: tuple[int, int, int]
    #: Plain values, see ``calls.array_library.ArrayLibrary``, as is the name of its module.
    modes: tuple[Any, ...]
    library: str
    watched: tuple[str, ...] | None = None
    #: That of the caller (``wire.captured_state``); empty: those of the task, as are the next ones.
    captured_state: bytes = b""
    numpy_errors: dict[str, str] = {}
    seeks_lost: bool = False
    retries: int = 0


class BranchRule(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A branch to differentiate: the worker has it, or makes it again from the call."""

    call: CallRule
    #: The numbers of the outputs that a gradient comes for.
    wanted: tuple[int, ...]
    output_count: int
    digest: int


class ResultTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a call has made: its place among the bytes, and what it is."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    requires_grad: bool


class CallAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a call has returned."""

    #: See ``calls.branch.Branch``.
    result: bytes
    outputs: tuple[ResultTensor, ...]
    #: The arrays that belong into ``result``.
    buffers: tuple[ResultTensor, ...]
    #: The inputs that have changed and may, and where their new bytes are.
    changed: tuple[tuple[int, ResultTensor], ...]
    #: The inputs whose values the branch has saved, and those that no output depends on.
    saved: tuple[int, ...]
    unreached: tuple[int, ...]
    digest: int
    #: The outputs that shared memory with an input or with each other.
    aliases: tuple[int, ...]
    #: The bytes of the second output.
    nbytes: int
    #: The slot of the worker that has recorded the branch.
    slot: int


class DerivativeRule(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """See ``calls.call.Derivative``. Its task has the outputs of a CallRule's: the gradients."""

    call: CallRule
    digest: int
    wanted: tuple[int, ...]
    kinds: bytes
    grads: tuple[PackedArray, ...]
    needs: tuple[bool, ...]
    changed: tuple[int, ...]
    modes: tuple[Any, ...]


Rule: TypeAlias = OperatorRule | FunctionRule | CaptureRule | CallRule | BranchRule | DerivativeRule


class Wiring(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The inputs and outputs around the rule of a Node; the same in each training step."""

    name: str
    #: The metadata of the gradients that flow in.
    inputs: tuple[InputMetadata, ...]
    #: The metadata of the gradients that flow out; None for an unused one.
    outputs: tuple[InputMetadata | None, ...]
    #: For each output: (step, input number) inside the task, a task output, or None if unused.
    routes: tuple[tuple[int, int] | int | None, ...]
    #: (input number, task output): complete inputs that leave unchanged.
    captures: tuple[tuple[int, int], ...] = ()
    #: Whether the rule runs even if no gradient is defined (custom Functions).
    takes_undefined: bool = False
    #: Whether the rule may return its input array itself for an output of the same shape and dtype
    #: (no copy).
    passes_on: bool = False
    #: Whether the outputs so far are published before the rule runs.
    publishes: bool = False
    #: The rule computes only these parts of output 0 (``arrays.cpu.column_parts``); None: all.
    parts: tuple[int, int] | None = None

    @functools.cached_property
    def needs(self) -> tuple[bool, ...]:
        """For each output, whether it is used."""
        return tuple([route is not None for route in self.routes])

    @functools.cached_property
    def single_slots(self) -> tuple[int | None, ...]:
        """Where the outputs flow in a task whose Nodes have one input each: the number of a Node,
        or ``~number`` of a task output."""
        return tuple(
            [
                ~route if type(route) is int else route and route[0]  # type: ignore[index]
                for route in self.routes
            ]
        )

    @functools.cached_property
    def task_outputs(self) -> range:
        """From the lowest to the highest number of a task output that it gives."""
        routes = [route for route in self.routes if type(route) is int]
        numbers = [*routes, *[number for _, number in self.captures]]
        return range(min(numbers, default=0), max(numbers, default=-1) + 1)

    @functools.cached_property
    def only_passes_on(self) -> bool:
        """Whether every used output is the input itself, whatever the rule does."""
        return self.passes_on and passes_on_alone(self.inputs, self.outputs)


def passes_on_alone(
    inputs: Sequence[InputMetadata], outputs: Sequence[InputMetadata | None]
) -> bool:
    """Whether what flows out has the form of the only input."""
    return len(inputs) == 1 and all(meta is None or meta == inputs[0] for meta in outputs)


class NodeProgram(msgspec.Struct, frozen=True, array_like=True):
    """One Node of a task.

    The wiring is the same in each step of a training loop. So it is sent as bytes, which both
    sides use as the key of a cache.
    """

    rule: Rule
    #: A Wiring, see encode_wiring.
    wiring: bytes


class TaskProgram(msgspec.Struct, frozen=True, array_like=True):
    """The Nodes of one NodeTask in the order in which they run."""

    nodes: tuple[NodeProgram, ...]
    #: The input of each slot of the task: (node, input number).
    slots: tuple[tuple[int, int], ...]
    #: Anomaly mode: the results are searched for NaN.
    checks_nan: bool = False
    #: Whether the reply must say when each of them ran (for the profiler).
    is_timed: bool = False
    #: The settings of the caller's ``np.errstate`` for the time of the task.
    numpy_errors: dict[str, str] = {}
    #: The captured state of its Functions (``wire.captured_state``); empty if it has none.
    captured_state: bytes = b""
    #: Slots whose contributions are parts of one gradient, and the number of its parts.
    joins: tuple[tuple[int, int], ...] = ()
    #: What must have run in this process before: its number and its pickle (``calls``).
    initializer: tuple[str, PackedArray] | None = None


#: The number of Nodes in a task's name; from longer tasks the first and the last ones.
NAMED_MAX = 8


def name_of(nodes: Sequence[str]) -> str:
    """The name of a task in messages: its Nodes in the order in which they run."""
    if len(nodes) <= NAMED_MAX:
        return " -> ".join(nodes)
    half = NAMED_MAX // 2
    return " -> ".join([*nodes[:half], f"({len(nodes) - 2 * half} more)", *nodes[-half:]])


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TaskProgram)
_wiring_encoder = msgspec.msgpack.Encoder(enc_hook=lambda dtype: dtype.str)
_wiring_decoder = msgspec.msgpack.Decoder(Wiring, dec_hook=lambda _, name: np.dtype(name))


def encode_program(program: TaskProgram) -> bytes:
    return _encoder.encode(program)


def decode_program(data: bytes | memoryview) -> TaskProgram:
    """The program in ``data``.

    Raises:
        ProtocolError: the bytes are no program.
    """
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed task program: {error}") from None


def encode_wiring(wiring: Wiring) -> bytes:
    return _wiring_encoder.encode(wiring)


def decode_wiring(data: bytes) -> Wiring:
    """The wiring in ``data``.

    Raises:
        ProtocolError: the bytes are no wiring.
    """
    try:
        wiring = _wiring_decoder.decode(data)
        return msgspec.structs.replace(
            wiring,
            inputs=tuple(map(_on_known_device, wiring.inputs)),
            outputs=tuple(map(_on_known_device, wiring.outputs)),
        )
    except (msgspec.MsgspecError, TypeError, RuntimeError) as error:
        raise ProtocolError(f"malformed wiring of a Node: {error}") from None


def _on_known_device(meta: InputMetadata | None) -> InputMetadata | None:
    """``meta`` with the Device object that the rest of this process uses."""
    return None if meta is None else meta._replace(device=Device(*meta.device))


# --------------------------------------------------------------------- plain values

_DTYPE, _SLICE, _ELLIPSIS, _COMPLEX = 1, 2, 3, 4


def _to_ext(value: Any) -> Any:
    if isinstance(value, np.dtype | DType):
        return msgspec.msgpack.Ext(_DTYPE, value.str.encode())
    if isinstance(value, slice):
        return msgspec.msgpack.Ext(_SLICE, encode_plain((value.start, value.stop, value.step)))
    if value is Ellipsis:
        return msgspec.msgpack.Ext(_ELLIPSIS, b"")
    if isinstance(value, complex):
        return msgspec.msgpack.Ext(_COMPLEX, encode_plain((value.real, value.imag)))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"an operator's attribute is a {type(value).__name__}; allowed are None, bool, int, float, "
        "complex, str, tuples of these, slice, Ellipsis and dtypes"
    )


def _from_ext(code: int, data: memoryview) -> Any:
    if code == _DTYPE:
        return np.dtype(bytes(data).decode())
    if code == _ELLIPSIS:
        return Ellipsis
    if code in (_SLICE, _COMPLEX):
        parts = decode_plain(bytes(data))
        return slice(*parts) if code == _SLICE else complex(*parts)
    raise ProtocolError(f"unknown plain value of kind {code}")


_plain_encoder = msgspec.msgpack.Encoder(enc_hook=_to_ext)
_plain_decoder = msgspec.msgpack.Decoder(ext_hook=_from_ext)


def encode_plain(value: Any) -> bytes:
    """Bytes of attributes, shapes and dtypes.

    Raises:
        TypeError: a value has another type; the message names it.
    """
    return _plain_encoder.encode(value)


def decode_plain(data: bytes) -> Any:
    """The value; sequences come back as tuples."""
    return _tuples(_plain_decoder.decode(data))


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
