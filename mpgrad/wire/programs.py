"""What a NodeTask's payload says: which rules to run on which saved arrays, wired how.

The client writes it into its arena and the worker reads it there; the coordinator passes on the
offset and never looks. Arrays are exact: strides travel too, because NumPy and BLAS may round
differently for another memory layout.
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
from mpgrad.graph.node import InputMetadata


class SharedArray(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """An array in an arena."""

    handle: TensorHandle


class InlineArray(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A small array: the bytes from its lowest to its highest address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    #: Where element 0 lies in ``data``.
    offset: int
    data: bytes


PackedArray: TypeAlias = SharedArray | InlineArray


class OperatorRule(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A registered operator with what its Node saved."""

    operator: str
    saved: dict[str, PackedArray]
    #: For variadic inputs; None stands for a scalar, which ``plain`` holds.
    several: dict[str, tuple[PackedArray | None, ...]]
    #: Shapes, dtypes, attributes: see encode_plain; empty if there are none.
    plain: bytes


class FunctionRule(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A user's Function: its code by content, its ctx by pickle with the arrays out of band."""

    code_id: str
    code: PackedArray
    saved: tuple[PackedArray | None, ...]
    #: The ctx's ContextDescription: the same bytes in each step of a training loop.
    description: bytes
    #: What the user set on the ctx; empty if that is nothing.
    attributes: bytes
    buffers: tuple[PackedArray, ...]
    #: The number of its Node in the graph.
    node: int = -1
    #: Whether the client wants to know what it got and gave.
    is_told: bool = False


class CaptureRule(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """No rule: the node's inputs are wanted as they are (AccumulateGrad, ``grad()`` inputs)."""


Rule: TypeAlias = OperatorRule | FunctionRule | CaptureRule


class Wiring(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """What surrounds the rule of a Node in a task; the same in each step of a training loop."""

    name: str
    #: What the gradients look like that flow in.
    inputs: tuple[InputMetadata, ...]
    #: The same of those that flow out; None where nobody wants one.
    outputs: tuple[InputMetadata | None, ...]
    #: For each output: (step, input number) inside the task, a task output, or None: unwanted.
    routes: tuple[tuple[int, int] | int | None, ...]
    #: (input number, task output): complete inputs that are wanted as they are.
    captures: tuple[tuple[int, int], ...] = ()
    #: Whether the rule wants to run even if no gradient is defined (custom Functions).
    takes_undefined: bool = False
    #: Whether the rule gives out the gradient that came in, the very array, where one of the same
    #: shape and dtype is wanted.
    passes_on: bool = False
    #: Whether what has left so far is told to the coordinator before the rule runs.
    publishes: bool = False
    #: Of output 0 only these parts (``backends.column_parts``); None: all of it.
    parts: tuple[int, int] | None = None

    @functools.cached_property
    def needs(self) -> tuple[bool, ...]:
        """For each output, whether it is wanted."""
        return tuple([route is not None for route in self.routes])

    @functools.cached_property
    def only_passes_on(self) -> bool:
        """Whether the input is what every wanted output is, whatever the rule does."""
        return (
            self.passes_on
            and len(self.inputs) == 1
            and all(meta is None or meta == self.inputs[0] for meta in self.outputs)
        )


class NodeProgram(msgspec.Struct, frozen=True, array_like=True):
    """One Node of a task.

    Its wiring is the same in each step of a training loop, so it travels as bytes by which both
    sides find what they made of it before.
    """

    rule: Rule
    #: A Wiring, see encode_wiring.
    wiring: bytes


class TaskProgram(msgspec.Struct, frozen=True, array_like=True):
    """The Nodes of one NodeTask in the order in which they run."""

    nodes: tuple[NodeProgram, ...]
    #: Which input each slot of the task is: (node, input number).
    slots: tuple[tuple[int, int], ...]
    #: Anomaly mode: what they return is searched for NaN.
    checks_nan: bool = False
    #: Whether the reply shall say when each of them ran (for the profiler).
    is_timed: bool = False
    #: What the caller's ``np.errstate`` has changed, for as long as the task runs.
    numpy_errors: dict[str, str] = {}
    #: What its Functions find around them (``wire.surroundings``); empty if there are none.
    surroundings: bytes = b""
    #: Slots whose contributions are parts of one gradient, and how many parts that has.
    joins: tuple[tuple[int, int], ...] = ()


#: Nodes by which a task is named in messages; of longer ones the ends are.
NAMED_MAX = 8


def name_of(nodes: Sequence[str]) -> str:
    """What a task is called in messages: its Nodes in the order in which they run."""
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
        ProtocolError: the bytes are none.
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
    """``meta`` with the very Device that others of this process have."""
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
        TypeError: a value of another kind; the message names it.
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
