"""Files that are damaged, spliced, changed opcode by opcode, or invented: by seed and number."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import pickletools
import random
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import mpgrad as mg
from tests.security import hostile_pickles as hostile

#: The longest file that is damaged: what a file may ask for grows with its length.
BYTES_MAX = 1 << 16
#: Numbers at which code goes wrong.
_EDGES = [
    0, 1, 2, 7, 8, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1,
    2**63, 2**64 - 1, -1, -8, -(2**31), -(2**63), 2**2000,
]  # fmt: skip
_CODES = [
    "b1", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "f16", "c8", "c16", "c32", "U1", "U3", "S1",
    "S5", "O", "O8", "V8", "M8", "T", "U0", "f8,f8", "(2,)f8", "x",
]  # fmt: skip
_NAMES = [
    "numpy:ndarray", "numpy:dtype", "numpy._core.multiarray:_reconstruct", "collections:Counter",
    "numpy._core.multiarray:scalar", "numpy._core.numeric:_frombuffer", "mpgrad:Tensor",
    "mpgrad.nn.parameter:UninitializedParameter", "mpgrad.base.dtype:DType", "mpgrad:Device",
    "mpgrad.tensor_methods.copies:_rebuild", "collections:OrderedDict", "_codecs:encode",
    "mpgrad:Size", "mpgrad.nn.parameter:Buffer", "os:system", "mpgrad:load",
    "builtins:set", "builtins:frozenset", "builtins:slice", "builtins:complex", "builtins:bytes",
    "builtins:bytearray",
]  # fmt: skip
_TEXTS = [
    "", "C", "F", "K", "a", "cpu", "cuda:0", "cuda:99", "<f4", "|O", "latin1", "idna", "\ud800",
]  # fmt: skip
_ATTRIBUTES = ["note", "_array", "grad", "shape", "_metadata", "__array_interface__", "__class__"]


def damaged(seed: int, number: int) -> bytes:
    """File ``number`` of a run."""
    chance = random.Random(f"{seed} {number}")
    if chance.random() < 0.25:
        return pickle.PROTO + b"\x04" + _invented(chance, 3) + pickle.STOP
    data = chance.choice(originals())
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        data = chance.choice(_WAYS)(chance, data)
    return data[:BYTES_MAX]


# ---------------------------------------------------------------------- what is damaged


@cache
def honest() -> list[bytes]:
    """Files of ``mg.save``, of all protocols."""
    return [
        pickle.dumps(value, protocol)
        for value in _values()
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]


@cache
def originals() -> list[bytes]:
    """Honest files, hostile ones, and those of other programs."""
    found = honest() + _of_other_programs()
    for group in hostile.GROUPS:
        found += hostile.files(group).values()
    return [data for data in found if len(data) <= BYTES_MAX]


def _values() -> list[Any]:
    model = mg.nn.Sequential(mg.nn.Linear(3, 2), mg.nn.BatchNorm1d(2))
    optimizer = mg.optim.AdamW(model.parameters())
    model(mg.ones(4, 3)).sum().backward()
    optimizer.step()
    noted = mg.ones(2)
    noted.note = [noted, {"a": 1}]  # type: ignore[attr-defined]
    kinds = ("?", "b", ">i8", "f", "G", "U2", "S2")
    arrays = [np.arange(6).reshape(2, 3).astype(kind) for kind in kinds]
    return [
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
        [arrays, [array.T for array in arrays], [array.dtype for array in arrays]],
        [array[0, 1] for array in arrays],
        [noted, noted.to(mg.float64), mg.float16],
        [mg.nn.Buffer(mg.arange(10_000)), mg.nn.LazyLinear(1).state_dict()],
        {(1, (2, "a")): {1.5}, b"x": frozenset([1]), None: [1 + 2j, slice(1, 2), bytearray(b"x")]},
        [True, False, None, 0, 255, -1, 65535, 2**31, -(2**70), 0.1, "text", b"bytes", "x" * 300],
        Counter("abca"),
        [*range(300)],
    ]  # fmt: skip


def _of_other_programs() -> list[bytes]:
    """Files of PyTorch, safetensors and NumPy, which are refused, and IDX files."""
    archive, array = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("weights/data.pkl", b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s.")
        file.writestr("weights/data/0", bytes(64))
    np.save(array, np.arange(6.0))
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    idx = struct.pack(">BBBB2I", 0, 0, 13, 2, 2, 3) + bytes(24)
    older = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    return [
        archive.getvalue(), array.getvalue(), idx, gzip.compress(idx),
        struct.pack("<Q", len(header)) + header + bytes(8),
        b"".join(pickle.dumps(part, 2) for part in older),
    ]  # fmt: skip


# ---------------------------------------------------------------------- how it is damaged


def _flip(chance: random.Random, data: bytes) -> bytes:
    return _replace(chance, data, lambda old: bytes([old[0] ^ 1 << chance.randrange(8)]))


def _set(chance: random.Random, data: bytes) -> bytes:
    edge = chance.choice(_EDGES) % 256
    return _replace(chance, data, lambda old: bytes([edge]))


def _replace(chance: random.Random, data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    at = chance.randrange(max(1, len(data)))
    return data[:at] + change(data[at : at + 1] or b"\0") + data[at + 1 :]


def _set_number(chance: random.Random, data: bytes) -> bytes:
    """An integer of several bytes, as lengths are."""
    size = chance.choice((2, 4, 8))
    at = chance.randrange(max(1, len(data)))
    number = (chance.choice(_EDGES) % 2 ** (8 * size)).to_bytes(size, "little")
    return data[:at] + number + data[at + size :]


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _move(chance: random.Random, data: bytes) -> bytes:
    """A piece left out, or repeated, somewhere else."""
    begin, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    end = min(end, begin + 100)
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[begin:end] * chance.choice((0, 1, 2, 50)) + data[max(at, end) :]


def _splice(chance: random.Random, data: bytes) -> bytes:
    other = chance.choice(originals())
    at, of_other = chance.randrange(len(data) + 1), chance.randrange(len(other) + 1)
    return data[:at] + other[of_other:]


def _change_opcodes(chance: random.Random, data: bytes) -> bytes:
    """One opcode with its argument left out, doubled, exchanged, or taken from another file."""
    parts = _opcodes(data)
    at, other = chance.randrange(len(parts)), chance.randrange(len(parts))
    way = chance.randrange(6)
    if way == 0:
        del parts[at]
    elif way == 1:
        parts.insert(at, parts[other])
    elif way == 2:
        parts[at], parts[other] = parts[other], parts[at]
    elif way == 3:
        parts[at] = chance.choice(_opcodes(chance.choice(originals())))
    elif way == 4:
        parts[at] = bytes([ord(chance.choice(pickletools.opcodes).code)]) + parts[at][1:]
    else:
        parts[at] = _invented(chance, 2)
    return b"".join(parts)


def _opcodes(data: bytes) -> list[bytes]:
    """The parts of a pickle; what is none is one part."""
    starts = [0]
    with contextlib.suppress(Exception):  # it is damaged already, in any way
        starts += [at for _, _, at in pickletools.genops(data) if at]
    return [data[begin:end] for begin, end in zip(starts, [*starts[1:], len(data)], strict=True)]


_WAYS = [_flip, _set, _set_number, _cut, _move, _splice, *[_change_opcodes] * 4]


# ---------------------------------------------------------------------- what is invented


def _invented(chance: random.Random, depth: int) -> bytes:
    """A value by a random program, which nearly follows the rules."""

    def some(count: int) -> list[bytes]:
        return [_invented(chance, depth - 1) for _ in range(chance.randrange(count))]

    def one() -> bytes:
        return _invented(chance, depth - 1)

    kinds: list[Callable[[], bytes]] = [
        lambda: _number(chance),
        lambda: chance.choice((pickle.NONE, pickle.NEWTRUE, pickle.EMPTY_TUPLE, pickle.EMPTY_LIST)),
        lambda: hostile.text(chance.choice(_TEXTS)),
        lambda: _bytes(chance),
        lambda: hostile.name(chance.choice(_NAMES)),
        lambda: hostile.get(chance.randrange(4)),
    ]
    if depth > 0:
        kinds += [
            lambda: hostile.tuple_of(*some(4)),
            lambda: (
                pickle.MARK + b"".join(some(4)) + chance.choice((pickle.LIST, pickle.FROZENSET))
            ),
            lambda: hostile.many(pickle.EMPTY_DICT, *some(4)),
            lambda: hostile.call(chance.choice(_NAMES), *some(5)),
            lambda: one() + one() + pickle.BUILD,
            lambda: one() + hostile.put(chance.randrange(4)),
            *[lambda: _array(chance, one)] * 4,
            lambda: hostile.attributes(_array(chance, one), **{chance.choice(_ATTRIBUTES): one()}),
        ]
    return chance.choice(kinds)()


def _number(chance: random.Random) -> bytes:
    return hostile.number(chance.choice(_EDGES) + chance.choice((-1, 0, 0, 1)))


def _bytes(chance: random.Random) -> bytes:
    return hostile.data(chance.randbytes(chance.choice((0, 1, 2, 4, 8, 8, 8, 16, 64))))


def _array(chance: random.Random, other: Callable[[], bytes]) -> bytes:
    """An array, a scalar or a Tensor, in which a part may be something else."""

    def rather(part: bytes) -> bytes:
        return other() if chance.random() < 0.05 else part

    state = [3, chance.choice("<>|="), None, None, None, *chance.choice([(-1, -1, 0), (8, 8, 63)])]
    parts = [pickle.dumps(part, 2)[2:-1] for part in state]
    kind = hostile.dtype(
        chance.choice(_CODES), *map(rather, parts) if chance.random() < 0.7 else ()
    )
    lengths = [
        rather(hostile.number(chance.choice((0, 1, 1, 2, 8)))) for _ in range(chance.randrange(4))
    ]
    shape, elements = rather(hostile.tuple_of(*lengths)), rather(_bytes(chance))
    made = chance.choice([
        lambda: hostile.array(rather(kind), shape, elements),
        lambda: hostile.buffer(elements, rather(kind), shape, hostile.text(chance.choice("CFK"))),
        lambda: hostile.scalar(rather(kind), elements),
    ])()  # fmt: skip
    return hostile.tensor(made) if chance.random() < 0.5 else made
