"""HarmlessReader: reads a pickle that nobody vouches for.

It knows the opcodes that Python 3 writes for tensors and plain containers, and no others. What they
may make, ``HarmlessObjects`` decides. Python's own reader allots memory by numbers in the file.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from typing import IO, Any

from mpgrad.serialization.byte_source import ByteSource
from mpgrad.serialization.harmless_objects import HarmlessObjects


class HarmlessReader:
    """One pickle in a file, from its position on. ``load`` reads no byte behind it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._source = ByteSource(file)
        self._objects = HarmlessObjects(self._source)
        self._memo: dict[int, Any] = {}
        #: The objects since the last MARK, and those before each MARK.
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []

    def load(self) -> Any:
        """Read the object.

        Raises:
            pickle.UnpicklingError: it is not harmless.
            Exception: the file is damaged; what is raised says only where that was noticed.
        """
        source, methods = self._source, _METHODS
        while (code := source.opcode()) != pickle.STOP:
            method = methods.get(code)
            if method is None:
                raise pickle.UnpicklingError(f"{code!r} is no opcode of mg.save")
            method(self)
        return self._stack.pop()

    # ------------------------------------------------------------------ the form of the pickle

    def _read_protocol(self) -> None:
        protocol = self._source.number(1)
        if protocol > pickle.HIGHEST_PROTOCOL:
            raise ValueError(f"unsupported pickle protocol: {protocol}")

    def _pass_frame(self) -> None:
        # It says how much may be read at once; the file has a buffer of its own.
        self._source.take(8)

    def _mark(self) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        found = self._stack
        self._stack = self._outer.pop()
        return found

    def _pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()

    def _pop_mark(self) -> None:
        self._since_mark()

    def _get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _refuse_persistent_id(self) -> None:
        raise pickle.UnpicklingError("it has a persistent id")

    # ------------------------------------------------------------------ numbers, texts, bytes

    def _push_line_of_int(self) -> None:
        text = self._source.short_line()
        self._stack.append(text == b"01" if text in (b"00", b"01") else int(text))

    def _push_line_of_long(self) -> None:
        self._stack.append(int(self._source.short_line().removesuffix(b"L")))

    def _push_line_of_float(self) -> None:
        self._stack.append(float(self._source.short_line()))

    def _push_line_of_text(self) -> None:
        self._stack.append(str(self._source.line(), "raw-unicode-escape"))

    def _push_number(self, size: int) -> None:
        self._stack.append(self._source.number(size))

    def _push_signed(self) -> None:
        self._stack.append(int.from_bytes(self._source.take(4), "little", signed=True))

    def _push_long(self, size: int) -> None:
        data = self._source.take(self._source.number(size))
        self._stack.append(int.from_bytes(data, "little", signed=True))

    def _push_float(self) -> None:
        self._stack.append(struct.unpack(">d", self._source.take(8))[0])

    def _push_text(self, size: int) -> None:
        data = self._source.take(self._source.number(size))
        self._stack.append(str(data, "utf-8", "surrogatepass"))

    def _push_bytes(self, size: int) -> None:
        self._stack.append(self._source.take(self._source.number(size)))

    def _push_bytearray(self) -> None:
        self._stack.append(self._source.take_writable(self._source.number(8)))

    # ------------------------------------------------------------------ containers

    def _push_tuple(self) -> None:
        items = self._since_mark()
        self._stack.append(self._objects.tuple_of(items))

    def _make_tuple(self, length: int) -> None:
        items = self._stack[-length:]
        if len(items) < length:
            raise IndexError("a tuple has more items than there are objects")
        self._stack[-length:] = [self._objects.tuple_of(items)]

    def _push_list(self) -> None:
        items = self._since_mark()
        self._stack.append(items)

    def _append(self) -> None:
        self._extend_by([self._stack.pop()])

    def _extend(self) -> None:
        self._extend_by(self._since_mark())

    def _extend_by(self, items: list[Any]) -> None:
        container = self._stack[-1]
        if type(container) is not list:
            raise TypeError(f"{type(container).__name__} has no items to append")
        container.extend(items)

    def _push_dict(self) -> None:
        items = self._since_mark()
        self._stack.append({})
        self._set(items)

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _set_items(self) -> None:
        self._set(self._since_mark())

    def _set(self, items: Sequence[Any]) -> None:
        self._objects.set_items(self._stack[-1], items[::2], items[1::2])

    def _add_items(self) -> None:
        items = self._since_mark()
        self._objects.add_items(self._stack[-1], items)

    def _push_frozenset(self) -> None:
        items = self._since_mark()
        self._stack.append(self._objects.frozenset_of(items))

    # ------------------------------------------------------------------ all other objects

    def _push_global(self) -> None:
        module, name = self._source.short_line(), self._source.short_line()
        self._stack.append(self._objects.find(module.decode(), name.decode()))

    def _make_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(self._objects.find(module, name))

    def _make(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._objects.make(function, arguments))

    def _build(self) -> None:
        state = self._stack.pop()
        self._objects.build(self._stack[-1], state)


_Reader = HarmlessReader
_METHODS: dict[bytes, Callable[[HarmlessReader], None]] = {
    pickle.PROTO: _Reader._read_protocol,
    pickle.FRAME: _Reader._pass_frame,
    pickle.MARK: _Reader._mark,
    pickle.POP: _Reader._pop,
    pickle.POP_MARK: _Reader._pop_mark,
    pickle.GET: lambda self: self._get(int(self._source.short_line())),
    pickle.BINGET: lambda self: self._get(self._source.number(1)),
    pickle.LONG_BINGET: lambda self: self._get(self._source.number(4)),
    pickle.PUT: lambda self: self._put(int(self._source.short_line())),
    pickle.BINPUT: lambda self: self._put(self._source.number(1)),
    pickle.LONG_BINPUT: lambda self: self._put(self._source.number(4)),
    pickle.MEMOIZE: lambda self: self._put(len(self._memo)),
    pickle.PERSID: _Reader._refuse_persistent_id,
    pickle.BINPERSID: _Reader._refuse_persistent_id,
    pickle.NONE: lambda self: self._stack.append(None),
    pickle.NEWTRUE: lambda self: self._stack.append(True),
    pickle.NEWFALSE: lambda self: self._stack.append(False),
    pickle.INT: _Reader._push_line_of_int,
    pickle.LONG: _Reader._push_line_of_long,
    pickle.FLOAT: _Reader._push_line_of_float,
    pickle.UNICODE: _Reader._push_line_of_text,
    pickle.BININT: _Reader._push_signed,
    pickle.BININT1: lambda self: self._push_number(1),
    pickle.BININT2: lambda self: self._push_number(2),
    pickle.LONG1: lambda self: self._push_long(1),
    pickle.LONG4: lambda self: self._push_long(4),
    pickle.BINFLOAT: _Reader._push_float,
    pickle.SHORT_BINUNICODE: lambda self: self._push_text(1),
    pickle.BINUNICODE: lambda self: self._push_text(4),
    pickle.BINUNICODE8: lambda self: self._push_text(8),
    pickle.SHORT_BINBYTES: lambda self: self._push_bytes(1),
    pickle.BINBYTES: lambda self: self._push_bytes(4),
    pickle.BINBYTES8: lambda self: self._push_bytes(8),
    pickle.BYTEARRAY8: _Reader._push_bytearray,
    pickle.EMPTY_TUPLE: lambda self: self._stack.append(()),
    pickle.TUPLE: _Reader._push_tuple,
    pickle.TUPLE1: lambda self: self._make_tuple(1),
    pickle.TUPLE2: lambda self: self._make_tuple(2),
    pickle.TUPLE3: lambda self: self._make_tuple(3),
    pickle.EMPTY_LIST: lambda self: self._stack.append([]),
    pickle.LIST: _Reader._push_list,
    pickle.APPEND: _Reader._append,
    pickle.APPENDS: _Reader._extend,
    pickle.EMPTY_DICT: lambda self: self._stack.append({}),
    pickle.DICT: _Reader._push_dict,
    pickle.SETITEM: _Reader._set_item,
    pickle.SETITEMS: _Reader._set_items,
    pickle.EMPTY_SET: lambda self: self._stack.append(set()),
    pickle.ADDITEMS: _Reader._add_items,
    pickle.FROZENSET: _Reader._push_frozenset,
    pickle.GLOBAL: _Reader._push_global,
    pickle.STACK_GLOBAL: _Reader._make_global,
    pickle.REDUCE: _Reader._make,
    pickle.NEWOBJ: _Reader._make,
    pickle.BUILD: _Reader._build,
}
