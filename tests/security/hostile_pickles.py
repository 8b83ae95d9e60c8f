"""Files that ``mg.load`` has to refuse: pickles that ``mg.save`` never writes, by opcodes."""

from __future__ import annotations

import pickle as p
import struct
import sys

NONE, TRUE, FALSE = p.NONE, p.NEWTRUE, p.NEWFALSE


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return p.BINUNICODE + struct.pack("<I", len(data)) + data


def data(value: bytes) -> bytes:
    return p.BINBYTES + struct.pack("<I", len(value)) + value


def number(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return p.LONG4 + struct.pack("<i", size) + value.to_bytes(size, "little", signed=True)


def tuple_of(*items: bytes) -> bytes:
    return p.MARK + b"".join(items) + p.TUPLE


def name(full: str) -> bytes:
    """What ``module:name`` is."""
    module, _, own = full.partition(":")
    return text(module) + text(own) + p.STACK_GLOBAL


def call(function: str, *arguments: bytes) -> bytes:
    return name(function) + tuple_of(*arguments) + p.REDUCE


def dtype(code: str, *state: bytes) -> bytes:
    made = call("numpy:dtype", text(code), FALSE, TRUE)
    return made + (tuple_of(*state) + p.BUILD if state else b"")


def array(kind: bytes, shape: bytes, elements: bytes) -> bytes:
    """An array as pickles of protocol 2 to 4 have it."""
    made = call(
        "numpy._core.multiarray:_reconstruct",
        name("numpy:ndarray"), tuple_of(number(0)), data(b"b"),
    )  # fmt: skip
    return made + tuple_of(number(1), shape, kind, FALSE, elements) + p.BUILD


def buffer(elements: bytes, kind: bytes, shape: bytes, *order: bytes) -> bytes:
    """An array as pickles of protocol 5 have it."""
    return call("numpy._core.numeric:_frombuffer", elements, kind, shape, *(order or (text("C"),)))


def scalar(kind: bytes, element: bytes) -> bytes:
    return call("numpy._core.multiarray:scalar", kind, element)


def tensor(values: bytes, kind: str = "mpgrad:Tensor", device: str = "cpu") -> bytes:
    function = "mpgrad.tensor_methods.copies:_rebuild"
    return call(function, name(kind), values, FALSE, text(device))


def attributes(instance: bytes, **values: bytes) -> bytes:
    """``instance`` with attributes, as a Tensor has them."""
    items = b"".join(text(key) + value for key, value in values.items())
    return instance + tuple_of(p.EMPTY_DICT + p.MARK + items + p.SETITEMS, NONE) + p.BUILD


def many(container: bytes, *keys: bytes) -> bytes:
    return container + p.MARK + b"".join(key + NONE for key in keys) + p.SETITEMS


def put(index: int) -> bytes:
    return p.LONG_BINPUT + struct.pack("<I", index)


def get(index: int) -> bytes:
    return p.LONG_BINGET + struct.pack("<I", index)


FLAT = (number(-1), number(-1), number(0))
SHAPE = tuple_of(number(1))
F8 = dtype("f8", number(3), text("<"), NONE, NONE, NONE, *FLAT)
EIGHT = data(b"A" * 8)
#: Objects whose flags say that there are none.
OBJECTS = dtype("O8", number(3), text("|"), NONE, NONE, NONE, *FLAT)
#: A field a GiB behind its element.
FIELD = p.EMPTY_DICT + text("a") + tuple_of(dtype("f8"), number(1 << 30)) + p.SETITEM
FAR = dtype(
    "V8", number(3), text("|"), NONE, tuple_of(text("a")), FIELD, number(8), number(1), number(0)
)
ADDRESS = p.EMPTY_DICT + p.MARK + b"".join([
    text("version"), number(3), text("typestr"), text("<f8"), text("shape"), SHAPE,
    text("data"), tuple_of(number(0x4141414141), FALSE),
]) + p.SETITEMS  # fmt: skip
MEGABYTE = data(bytes(1 << 20)) + put(0)
MANY = p.MARK + b"".join(number(at) for at in range(20_000)) + p.LIST
#: Tuples of two, 64 times inside each other: of 2 ** 64 parts.
DOUBLING = p.EMPTY_TUPLE + b"".join(
    put(level) + p.POP + get(level) + get(level) + p.TUPLE2 for level in range(64)
)
#: The numbers that all have the hash of 1.
ALIKE = [number(1 + at * sys.hash_info.modulus) for at in range(3000)]

DTYPES = {
    f"a dtype of {code}": dtype(code)
    for code in (
        "O", "O8", "V8", "V", "M8", "m8[s]", "T", "(2,)f8", "f8,f8", "i4,O", "U0", "S", "S0", "Ux",
        "U-3", "S9999999999", "f3", "f8\n", "", "float64", ">f8", "p", "g", "?", "\ud800",
    )
}  # fmt: skip
STATES = {
    "a scalar of a chosen address": scalar(OBJECTS, EIGHT),
    "an array of chosen addresses": array(OBJECTS, SHAPE, data(b"A" * 8)),
    "a buffer of chosen addresses": buffer(EIGHT, OBJECTS, SHAPE),
    "a field outside of its array": array(FAR, SHAPE, EIGHT),
    "a dtype with another size": dtype(
        "f8", number(3), text("<"), NONE, NONE, NONE, number(1 << 20), number(8), number(0)
    ),
    "a text with another size": dtype(
        "U1", number(3), text("<"), NONE, NONE, NONE, number(1 << 20), number(4), number(8)
    ),
    "a dtype with flags": dtype(
        "f8", number(3), text("<"), NONE, NONE, NONE, number(-1), number(-1), number(63)
    ),
    "a dtype with a subarray": dtype(
        "f8", number(3), text("<"), tuple_of(dtype("f8"), tuple_of(number(9))), NONE, NONE, *FLAT
    ),
    "a dtype with fields": dtype(
        "f8", number(3), text("<"), NONE, tuple_of(text("a")), FIELD, *FLAT
    ),
    "a dtype with metadata": dtype(
        "f8", number(4), text("<"), NONE, NONE, NONE, *FLAT, p.EMPTY_DICT
    ),
    "a dtype with a short state": dtype("f8", number(3), text("<")),
    "a dtype with an order of its own": dtype(
        "f8", number(3), text("="), NONE, NONE, NONE, *FLAT
    ),
    "a dtype with two states": F8 + tuple_of(
        number(3), text(">"), NONE, NONE, NONE, *FLAT
    ) + p.BUILD,
    "a state for a dtype's class": name("numpy:dtype") + tuple_of(number(3)) + p.BUILD,
}  # fmt: skip
ARRAYS = {
    "too few bytes": array(F8, tuple_of(number(2)), EIGHT),
    "too many bytes": array(F8, tuple_of(number(0)), EIGHT),
    "a buffer with too few bytes": buffer(EIGHT, F8, tuple_of(number(2))),
    "a buffer with too many bytes": buffer(EIGHT, F8, tuple_of(number(0))),
    "a scalar with too few bytes": scalar(F8, data(b"A" * 7)),
    "a scalar with too many bytes": scalar(F8, data(b"A" * 9)),
    "a scalar without bytes": scalar(F8, NONE),
    "an array without bytes": array(F8, SHAPE, p.EMPTY_LIST),
    "an array over a text": buffer(text("A" * 8), F8, SHAPE),
    "an array over another array": buffer(buffer(EIGHT, F8, SHAPE), F8, SHAPE),
    "a negative length": array(F8, tuple_of(number(-1), number(-1)), EIGHT),
    "lengths whose product is small again": array(
        F8, tuple_of(number(1 << 32), number(1 << 32)), data(b"")
    ),
    "a length of a million digits": array(F8, tuple_of(*[number(1 << 800_000)] * 3), EIGHT),
    "a thousand dimensions": array(F8, tuple_of(*[number(1)] * 1000), EIGHT),
    "a length that is no integer": array(F8, tuple_of(p.BINFLOAT + struct.pack(">d", 1.0)), EIGHT),
    "an array with two states": array(F8, SHAPE, EIGHT) + tuple_of(
        number(1), SHAPE, F8, FALSE, EIGHT
    ) + p.BUILD,
    "a state for a buffer": buffer(EIGHT, F8, SHAPE) + tuple_of(
        number(1), SHAPE, F8, FALSE, EIGHT
    ) + p.BUILD,
    "axes that are none": buffer(EIGHT, F8, SHAPE, text("K"), tuple_of(number(7))),
    "a bool that is 2": array(dtype("b1"), SHAPE, data(b"\2")),
    "a scalar bool that is 255": scalar(dtype("b1"), data(b"\xff")),
    "a text of no characters": array(dtype("U1"), SHAPE, data(b"\xff" * 4)),
    "an array of a class of its own": call(
        "numpy._core.multiarray:_reconstruct", name("mpgrad:Tensor"), SHAPE, data(b"b")
    ),
    "a tensor of texts": tensor(array(dtype("S8"), SHAPE, EIGHT)),
    "a tensor over bytes": tensor(EIGHT),
    "a tensor of a class that is none": tensor(array(F8, SHAPE, EIGHT), "numpy:ndarray"),
    "integers that require grad": call(
        "mpgrad.tensor_methods.copies:_rebuild",
        name("mpgrad:Tensor"), array(dtype("i8"), SHAPE, EIGHT), TRUE, text("cpu"),
    ),
    "a tensor with an address": attributes(
        tensor(array(F8, SHAPE, EIGHT)), __array_interface__=ADDRESS
    ),
    "a dictionary with an address": call("collections:OrderedDict") + (
        p.EMPTY_DICT + text("__array_interface__") + ADDRESS + p.SETITEM + p.BUILD
    ),
    "a tensor with an attribute that is no text": tensor(array(F8, SHAPE, EIGHT)) + tuple_of(
        p.EMPTY_DICT + number(1) + number(2) + p.SETITEM, NONE
    ) + p.BUILD,
}  # fmt: skip
#: Files of some bytes that ask for more memory than there is.
LARGE = {
    "an index of the memo": NONE + put(0xFFFFFFFF) + put(0xEFFFFFFF) + p.POP,
    "a text index of the memo": NONE + b"p99999999999999999999\n" + p.POP,
    "bytes": p.BINBYTES8 + struct.pack("<Q", 1 << 40),
    "bytes of 4 GiB": p.BINBYTES + struct.pack("<I", 0xFFFFFFFF),
    "a bytearray": p.BYTEARRAY8 + struct.pack("<Q", 1 << 40),
    "a text": p.BINUNICODE8 + struct.pack("<Q", 1 << 40),
    "a text of any length": p.BINUNICODE8 + struct.pack("<Q", (1 << 64) - 1),
    "an integer": p.LONG4 + struct.pack("<i", (1 << 31) - 1),
    "an integer of a negative length": p.LONG4 + struct.pack("<i", -1),
    "a frame": p.FRAME + struct.pack("<Q", 1 << 40),
    "a bytearray of zeros": call("builtins:bytearray", number(1 << 40)),
    "bytes of zeros": call("builtins:bytes", number(1 << 40)),
    "an array": array(F8, tuple_of(number(1 << 37)), data(b"")),
    "an array over a buffer": buffer(data(b""), F8, tuple_of(number(1 << 37))),
    "a dtype of long texts": dtype("U99999999"),
    "a text of NumPy": scalar(dtype("U99999999"), data(b"")),
    "copies": MEGABYTE + p.MARK + (
        call("builtins:bytearray", get(0)) * 20_000
    ) + p.TUPLE,
    "tensors": buffer(MEGABYTE, F8, tuple_of(number(1 << 17))) + put(1) + p.MARK + (
        tensor(get(1)) * 20_000
    ) + p.TUPLE,
    "sets": MANY + put(0) + p.MARK + call("builtins:set", get(0)) * 20_000 + p.TUPLE,
}  # fmt: skip
#: Files that keep Python busy for ever, or overflow its stack.
DEEP = {
    "a key of 2 ** 64 parts": many(p.EMPTY_DICT, DOUBLING),
    "an item of a set of 2 ** 64 parts": p.EMPTY_SET + p.MARK + DOUBLING + p.ADDITEMS,
    "a frozenset of 2 ** 64 parts": p.MARK + DOUBLING + p.FROZENSET,
    "a tuple of 2 ** 64 parts": DOUBLING,
    "a million tuples inside each other": p.EMPTY_TUPLE + p.TUPLE1 * 1_000_000,
    "a key of a million tuples": many(p.EMPTY_DICT, p.EMPTY_TUPLE + p.TUPLE1 * 1_000_000),
    "a many slices inside each other": (
        name("builtins:slice") * 20_000 + NONE + (p.TUPLE1 + p.REDUCE) * 20_000
    ),
    "numbers with one hash": many(p.EMPTY_DICT, *ALIKE),
    "tuples with one hash": many(p.EMPTY_DICT, *map(tuple_of, ALIKE)),
    "items of a set with one hash": p.EMPTY_SET + p.MARK + b"".join(ALIKE) + p.ADDITEMS,
    "items of a list for a set with one hash": call(
        "builtins:frozenset", p.MARK + b"".join(ALIKE) + p.LIST
    ),
    "a key of a million digits": many(p.EMPTY_DICT, number(1 << 4_000_000)),
    "a number of a million digits": b"I" + b"9" * 1_000_000 + b"\n",
    "a float of a million digits": b"F" + b"9" * 1_000_000 + b"\n",
}
#: What a pickle can do, and a file of tensors never does.
OTHERS = {
    "a call of os.system": call("os:system", text("true")),
    "a call of another function of numpy": call("numpy:fromfile", text("/etc/passwd")),
    "a call of a method": call("numpy:ndarray.tofile", text("x")),
    "a call of a class that is only a value": call("numpy:ndarray", SHAPE),
    "a call of a Tensor": call("mpgrad:Tensor", buffer(EIGHT, F8, SHAPE)),
    "a call of a text": text("f") + tuple_of() + p.REDUCE,
    "a call of a list": p.EMPTY_LIST + tuple_of() + p.REDUCE,
    "a call with a list": name("builtins:set") + p.EMPTY_LIST + p.REDUCE,
    "too many arguments": call("builtins:complex", number(1), number(2), number(3)),
    "bytes by another codec": call("_codecs:encode", text("A"), text("idna")),
    "bytes by a codec that is none": call("_codecs:encode", text("A"), EIGHT),
    "a device that is none": call("mpgrad:Device", text("mps"), NONE),
    "another device": call("mpgrad:Device", text("cuda"), text("x")),
    "a Size of texts": call("mpgrad:Size", tuple_of(text("x"))),
    "a module that is no text": number(1) + text("dtype") + p.STACK_GLOBAL,
    "a name that is no text": b"cnumpy\n\xff\xfe\n",
    "a surrogate as a name": name("numpy:\ud800"),
    "a state for a list": p.EMPTY_LIST + p.EMPTY_DICT + p.BUILD,
    "a state for a class": name("mpgrad:Tensor") + p.EMPTY_DICT + p.BUILD,
    "items for a tuple": p.EMPTY_TUPLE + NONE + p.APPEND,
    "items for a class": name("collections:OrderedDict") + NONE + NONE + p.SETITEM,
    "one item and a half": p.EMPTY_DICT + p.MARK + NONE + p.SETITEMS,
    "a key that is a list": many(p.EMPTY_DICT, p.EMPTY_LIST),
    "a key that is an array": many(p.EMPTY_DICT, buffer(EIGHT, F8, SHAPE)),
    "a tuple of more than there is": p.MARK + NONE + p.TUPLE3,
    "nothing": b"",
    "nothing behind a mark": p.MARK,
    "an end without a mark": NONE + p.TUPLE,
    "an object that was not put": get(7),
    "an extension": p.EXT1 + b"\1",
    "an old instance": b"(icollections\nOrderedDict\n",
    "another old instance": p.MARK + name("collections:OrderedDict") + p.OBJ,
    "a buffer from elsewhere": p.NEXT_BUFFER,
    "an opcode that is none": b"\xff",
    "another protocol": p.PROTO + b"\xff",
}
GROUPS = {
    "dtypes": DTYPES, "states": STATES, "arrays": ARRAYS, "large": LARGE, "deep": DEEP,
    "others": OTHERS,
}  # fmt: skip


def files(group: str) -> dict[str, bytes]:
    """The files of a group, by what they hold."""
    bodies = GROUPS[group].items()
    return {name: p.PROTO + b"\4" + body + p.STOP for name, body in bodies}
