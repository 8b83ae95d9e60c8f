"""Lease and view: bounds before views, one release at the last view's death, no crash after."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpgrad.errors import ProtocolError
from mpgrad.shm.mapped_arena import byte_bounds, lease_of, view
from mpgrad.shm.segment import Segment

PAGE = 4096
TOKEN = (64, 7)


@pytest.fixture
def segment():
    return Segment.create(PAGE, "test")


def open_view(segment, offset=64, shape=(4,), dtype=np.float32, strides=None, **options):
    options = {"writeable": True, "released": None, "token": TOKEN} | options
    return view(segment, offset, shape, dtype, strides, **options)


def test_a_view_shows_the_segment(segment):
    array = open_view(segment, 64, (2, 3), np.int16)
    array[...] = [[1, 2, 3], [4, 5, 6]]
    assert bytes(segment.buffer[64:76]) == array.tobytes()
    assert array.__array_interface__["data"][0] == segment.address + 64


@pytest.mark.parametrize("dtype", ["?", "i1", "<f2", ">f4", "<c16", "M8[ns]", "S5", "V3"])
def test_every_plain_dtype_is_kept(segment, dtype):
    array = open_view(segment, 64, (3,), dtype)
    assert array.dtype == np.dtype(dtype)
    assert array.shape == (3,)


def test_structured_dtypes_are_kept(segment):
    dtype = np.dtype([("x", "<f4"), ("y", "<i8")])
    array = open_view(segment, 64, (2,), dtype)
    array["y"] = 5
    assert array.dtype == dtype
    assert array[1]["y"] == 5


@pytest.mark.parametrize("dtype", [object, [("x", object)]])
def test_python_objects_are_refused(segment, dtype):
    with pytest.raises(ProtocolError, match="Python objects"):
        open_view(segment, dtype=dtype)


@pytest.mark.parametrize(
    "layout",
    [
        {"offset": -4},
        {"offset": PAGE},
        {"offset": PAGE - 15},
        {"shape": (PAGE,)},
        {"shape": (1 << 62, 1 << 62)},
        {"shape": (-1,)},
        {"shape": (-1, 0)},
        {"shape": (2, 2), "strides": (4,)},
        {"shape": (2,), "strides": (PAGE,)},
        {"shape": (2,), "strides": (-128,)},
        {"shape": (1 << 62, 4), "strides": (0, 4)},
        {"shape": (2.5,)},
        {"dtype": "no such type"},
        {"offset": 60, "bounds": (64, 128)},
        {"offset": 120, "bounds": (64, 128)},
        {"offset": PAGE - 8, "bounds": (64, 1 << 40)},
    ],
)
def test_a_layout_that_leaves_the_memory_is_refused(segment, layout):
    released: deque[tuple[int, int]] = deque()
    with pytest.raises(ProtocolError):
        open_view(segment, released=None, **layout)
    assert not released


def test_the_last_byte_can_be_reached(segment):
    open_view(segment, PAGE - 16)[3] = 1.0
    assert segment.buffer[PAGE - 1] == 0x3F


@st.composite
def strided_layouts(draw):
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    strides = tuple(draw(st.integers(-64, 64)) for _ in shape)
    return draw(st.integers(0, 256)), shape, strides


@settings(max_examples=150)
@given(strided_layouts())
def test_byte_bounds_are_exactly_what_the_elements_cover(layout):
    offset, shape, strides = layout
    covered = [
        offset + sum(i * s for i, s in zip(index, strides, strict=True)) + byte
        for index in np.ndindex(*shape)
        for byte in range(2)
    ]
    expected = (min(covered), max(covered) + 1) if covered else (offset, offset)
    assert byte_bounds(offset, shape, 2, strides) == expected


def test_the_release_comes_exactly_with_the_last_view(segment):
    released: deque[tuple[int, int]] = deque()
    array = open_view(segment, shape=(4, 4), released=released)
    transposed = array.T
    row = transposed[1:][::-1]
    del array
    assert not released
    del transposed
    assert not released
    row[0] = 1
    del row
    assert list(released) == [TOKEN]


@pytest.mark.parametrize("derive", [memoryview, np.asarray, lambda a: a.view(np.uint8)[1:]])
def test_whatever_refers_to_the_bytes_holds_them(segment, derive):
    released: deque[tuple[int, int]] = deque()
    derived = derive(open_view(segment, released=released))
    gc.collect()
    assert not released
    del derived
    assert len(released) == 1


def test_a_copy_holds_nothing(segment):
    released: deque[tuple[int, int]] = deque()
    array = open_view(segment, released=released)
    copies = [array.copy(), pickle.loads(pickle.dumps(array)), array + 1]
    del array
    assert len(released) == 1
    assert [copy.shape for copy in copies] == [(4,)] * 3


def test_a_read_only_view_stays_read_only(segment):
    array = open_view(segment, writeable=False)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.T[1:].flags.writeable = True


def test_a_writable_view_can_be_locked_and_unlocked(segment):
    array = open_view(segment)
    array.flags.writeable = False
    array.flags.writeable = True
    array[0] = 1


def test_views_outlive_the_segment_object():
    segment = Segment.create(PAGE, "test")
    array = open_view(segment)
    array[...] = 3
    segment.close()
    del segment
    gc.collect()
    assert array.tolist() == [3, 3, 3, 3]


def test_lease_of_knows_its_own_segment_only(segment):
    array = open_view(segment)
    assert lease_of(array[1:].reshape(3, 1), segment).token == TOKEN
    assert lease_of(array, Segment.create(PAGE, "other")) is None
    assert lease_of(np.ones(3), segment) is None
    assert lease_of(np.frombuffer(b"abcd", np.uint8), segment) is None


AT_SHUTDOWN = """
import sys
from mpgrad.shm.arena import Arena
arena = Arena(1 << 20, "test")
array = arena.empty((10, 10), "f4")
class Cycle: pass
cycle = Cycle(); cycle.me = cycle; cycle.array = arena.empty((10,), "f8")
sys.outlives_every_module = (arena, arena.empty((3,), "i4"))
array.fill(1)
"""


@pytest.mark.slow
def test_views_that_live_at_shutdown_do_no_harm():
    done = subprocess.run([sys.executable, "-c", AT_SHUTDOWN], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
