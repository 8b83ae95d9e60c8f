"""``mg.load`` of files that nobody vouches for: errors, whatever they ask for; and honest files."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest

import mpgrad as mg
from tests.security.hostile_pickles import GROUPS, files


def load(data: bytes) -> Any:
    return mg.load(io.BytesIO(data))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_a_hostile_file_is_refused_and_gets_no_memory(group: str) -> None:
    load(pickle.dumps(mg.nn.Parameter(mg.ones(1))))  # imports what it needs
    for name, data in files(group).items():
        tracemalloc.start()
        with pytest.raises(pickle.UnpicklingError, match="the file cannot be loaded: ") as refused:
            load(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < max(1 << 21, 200 * len(data)), name
        str(refused.value).encode()  # it can be printed


def numbers(kind: str) -> list[Any]:
    """NumPy's objects of one dtype, in all layouts."""
    plain = np.arange(6).reshape(2, 3).astype(kind)
    other = plain.astype(plain.dtype.newbyteorder())
    read_only = plain.copy()
    read_only.flags.writeable = False
    return [
        plain, other, plain.T, plain[::-1], plain.reshape(1, 2, 3).transpose(1, 0, 2), plain[:0],
        plain[:, 1], plain[0, 1], np.array(plain[0, 1]), read_only, plain.dtype, other.dtype,
    ]  # fmt: skip


def others() -> list[Any]:
    """All else that files hold. Sets have one item, because their order is no property."""
    noted = mg.ones(2)
    noted.note = [noted, "text", {"a": (1, (2, (3,)))}]  # type: ignore[attr-defined]
    metadata = OrderedDict(a=mg.ones(1))
    metadata._metadata = {"version": 1}  # type: ignore[attr-defined]
    weight = mg.nn.Parameter(mg.ones(3))
    array = np.arange(3.0)
    return [
        noted, metadata, weight, [weight, weight, weight.detach()], mg.nn.Buffer(mg.zeros(0, 3)),
        mg.nn.LazyLinear(2).state_dict(), mg.tensor([1 + 2j]).T, mg.arange(6).reshape(2, 3).T,
        [array, array, mg.from_numpy(array)], mg.float16, mg.bool, Counter("abca"), {1.5}, {2},
        frozenset([(1, 2)]), slice(1, None, np.int64(2)), 1 + 2j, b"", b"\xff" * 300,
        bytearray(b"\xff"), bytearray(), "é\U0001f600\ud800\n\\", "x" * 70_000, 2**70, -(2**3000),
        0.1, float("inf"),
        [None, True, False, 0, -1, 255, 256, 65536, 2**31], [*range(2000)], (), (1, 2, 3, 4),
        {(1, (2, "a")): 3, None: 4, 2**80: 5, b"x": 6, np.float32(1.5): 7, frozenset(): 8},
        [mg.Tensor, np.ndarray, set, OrderedDict],
    ]  # fmt: skip


def form(value: Any) -> Any:
    """What is the same where two objects are."""
    if isinstance(value, mg.Tensor):
        return type(value), value.requires_grad, form(value.detach().numpy()), len(vars(value))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.strides, value.tobytes(), value.flags.writeable
    if isinstance(value, dict):
        attributes = list(getattr(value, "__dict__", {}).items())
        return type(value), [*map(form, value)], [*map(form, value.values())], attributes
    if isinstance(value, list | tuple):
        return type(value), [*map(form, value)]
    return type(value), value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", [*"?bhilBHILefdgFDG", "U3", "S3", ""])
def test_an_honest_file_loads_as_python_reads_it(kind: str, protocol: int) -> None:
    for value in numbers(kind) if kind else others():
        file = io.BytesIO()
        mg.save(value, file, pickle_protocol=protocol)
        expected = pickle.loads(file.getvalue())
        found = load(file.getvalue())
        assert form(found) == form(expected)
        assert hash(found) == hash(expected) if isinstance(value, np.dtype) else True
    again = load(file.getvalue())
    assert form(again) == form(found)


def test_names_without_a_class_of_their_own_need_protocol_2() -> None:
    for value in (mg.device("cuda:1"), mg.Size((1, 2)), mg.Size(())):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert form(load(pickle.dumps(value, protocol))) == form(value)


def test_what_was_one_object_is_one_object() -> None:
    inner: list[Any] = [1]
    inner.append(inner)
    found = load(pickle.dumps([inner, inner, noted := mg.ones(2), noted]))
    assert found[0] is found[1] is found[0][1]
    assert found[2] is found[3]


def test_files_follow_one_another_in_a_stream() -> None:
    """No byte is read that belongs to the next one; there is no way back."""
    values = [{"a": [1.5] * 3}, "x" * 40_000, None]
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        for value in values:
            mg.save(value, file)
    with open(reading, "rb", buffering=0) as stream:
        assert [mg.load(stream) for _ in values] == values
        with pytest.raises(pickle.UnpicklingError, match="cut off"):
            mg.load(stream)


def test_older_files_of_pytorch_are_named() -> None:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    for weights_only in (True, False):
        with pytest.raises(pickle.UnpicklingError, match=r"file of torch\.save"):
            mg.load(io.BytesIO(magic + pickle.dumps(1001, 2)), weights_only=weights_only)


def test_the_end_of_another_archive_is_no_other_error() -> None:
    """Python's zipfile raises an error of its own for an archive in several parts."""
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 1, 0, 2)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0, 0, 0, 0, 0)
    for weights_only in (True, False):
        with pytest.raises(pickle.UnpicklingError, match="no file of mg"):
            mg.load(io.BytesIO(b"\xff" * 100 + locator + end), weights_only=weights_only)
