"""Segment: shared between processes, safe against resizing, gone with its last process."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import fcntl
import gc
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from mpgrad.errors import ProtocolError, SharedMemoryExhausted
from mpgrad.shm.segment import REQUIRED_SEALS, Segment
from tests.leftovers import wait_until
from tests.memory_holders import arena_bytes, arenas_of, holders_of

MIB = 1 << 20
PAGE = mmap.PAGESIZE


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def held_bytes(segment: Segment) -> int:
    """The bytes of physical pages that the kernel holds for the segment."""
    return os.fstat(segment.fd).st_blocks * 512


def test_two_mappings_see_each_other():
    segment = Segment.create(MIB, "test")
    other = Segment.attach(os.dup(segment.fd))
    segment.buffer[100:105] = b"hello"
    assert bytes(other.buffer[100:105]) == b"hello"
    assert other.nbytes == segment.nbytes == MIB
    assert other.address != segment.address


def test_a_sparse_terabyte_holds_no_memory():
    segment = Segment.create(1 << 40, "test")
    segment.buffer[(1 << 40) - 1] = 1
    assert held_bytes(segment) <= PAGE


def flags_of(address: int) -> list[str]:
    """The kernel's flags of the mapping of this process that begins at ``address``."""
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if line.startswith(f"{address:x}-"):
                return next(line.split()[1:] for line in lines if line.startswith("VmFlags:"))
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_core_dumps_leave_it_out():
    segment = Segment.create(1 << 40, "test")
    other = Segment.attach(os.dup(segment.fd))
    assert "dd" in flags_of(segment.address)
    assert "dd" in flags_of(other.address)
    other.make_private()
    assert "dd" in flags_of(other.address)


def test_the_size_is_rounded_up_to_pages():
    assert Segment.create(1, "test").nbytes == PAGE


def test_the_address_is_where_the_bytes_are():
    segment = Segment.create(PAGE, "test")
    segment.buffer[7] = 42
    interface = {"shape": (1,), "typestr": "|u1", "data": (segment.address + 7, True), "version": 3}
    holder = type("Holder", (), {"__array_interface__": interface})()
    assert np.asarray(holder)[0] == 42


@pytest.mark.parametrize("nbytes", [0, 100, 2 * MIB])
def test_nobody_can_resize_a_segment(nbytes):
    segment = Segment.create(MIB, "test")
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fd, nbytes)


def test_nobody_can_seal_it_against_writing():
    segment = Segment.create(MIB, "test")
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def unsealed_memfd() -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MIB)
    return fd


def half_sealed_memfd() -> int:
    fd = unsealed_memfd()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


def empty_memfd() -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, REQUIRED_SEALS)
    return fd


def no_memfd() -> int:
    return os.open(os.devnull, os.O_RDWR)


@pytest.mark.parametrize("make", [unsealed_memfd, half_sealed_memfd, empty_memfd, no_memfd])
def test_attach_refuses_what_could_kill_the_reader(make):
    before = open_descriptors()
    with pytest.raises(ProtocolError):
        Segment.attach(make())
    assert open_descriptors() == before


def test_attach_refuses_a_closed_descriptor():
    with pytest.raises(ProtocolError):
        Segment.attach(1 << 20)


def test_reserve_makes_pages_and_punch_gives_them_back():
    segment = Segment.create(64 * MIB, "test")
    segment.reserve(100, MIB)
    assert MIB <= held_bytes(segment) <= MIB + 2 * PAGE
    segment.populate(0, 17 * MIB)
    assert held_bytes(segment) == 17 * MIB
    segment.buffer[MIB] = 9
    segment.buffer[MIB - 1] = 8
    segment.punch(MIB, 16 * MIB)
    assert held_bytes(segment) == MIB
    assert (segment.buffer[MIB], segment.buffer[MIB - 1]) == (0, 8)


@pytest.mark.parametrize(("offset", "nbytes"), [(-PAGE, PAGE), (0, MIB + PAGE), (PAGE, -PAGE)])
@pytest.mark.parametrize("method", ["reserve", "populate", "punch"])
def test_a_range_outside_is_refused(method, offset, nbytes):
    segment = Segment.create(MIB, "test")
    with pytest.raises(ValueError, match="leave the segment"):
        getattr(segment, method)(offset, nbytes)


@pytest.mark.parametrize(("offset", "nbytes"), [(1, PAGE), (0, PAGE - 1)])
def test_only_whole_pages_can_be_punched(offset, nbytes):
    with pytest.raises(ValueError, match="whole pages"):
        Segment.create(MIB, "test").punch(offset, nbytes)


def test_a_kernel_that_takes_no_pages_back_leaves_them():
    class Mapping:
        def madvise(self, advice, offset, nbytes):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    segment = Segment.create(2 * PAGE, "test")
    segment.buffer[PAGE] = 9
    segment._mapping, mapping = Mapping(), segment._mapping
    segment.punch(PAGE, PAGE)
    segment._mapping = mapping
    assert segment.buffer[PAGE] == 9


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOSPC])
def test_a_machine_without_memory_is_a_python_error(monkeypatch, number):
    # The kernel's answer is imitated: filling the machine's memory would take the tests with it.
    def refuse(fd, offset, nbytes):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(SharedMemoryExhausted) as caught:
        Segment.create(MIB, "test").populate(0, MIB)
    assert isinstance(caught.value, MemoryError)


def end_of(action: Callable[[], object]) -> int:
    """How a child ends that does this: 0, 1 after an exception, or minus the number of a signal."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_write_into_a_protected_mapping_is_a_fault():
    segment = Segment.create(MIB, "test")
    other = Segment.attach(os.dup(segment.fd))
    inherited = os.dup(segment.fd)  # that of the segment is closed in a child

    def write() -> None:
        faulthandler.disable()  # pytest's would print a traceback
        mapped = Segment.attach(inherited)
        mapped.protect()
        assert mapped.buffer[5] == 7
        ctypes.memset(mapped.address + 5, 8, 1)

    segment.buffer[5] = 7
    assert end_of(write) == -signal.SIGSEGV
    os.close(inherited)
    assert other.buffer[5] == 7
    other.protect()
    assert other.buffer.readonly
    assert {"rd", "wr"} & {*flags_of(other.address)} == {"rd"}
    assert "dd" in flags_of(other.address)


def test_diverted_writes_are_seen_by_nobody_else():
    segment = Segment.create(1 << 40, "test")
    segment.buffer[0], segment.buffer[5 * PAGE] = 1, 2
    other = Segment.attach(os.dup(segment.fd))
    other.protect()
    assert other.divert_writes()
    before = other.diverted_bytes()
    segment.buffer[5 * PAGE] = 3  # what it does not write is shared
    assert other.buffer[5 * PAGE] == 3
    assert other.diverted_bytes() == before
    ctypes.memset(other.address + 7 * PAGE, 9, 1)
    ctypes.memset(other.address + 5 * PAGE, 3, 1)
    assert other.diverted_bytes() == before + 2 * PAGE
    assert (segment.buffer[7 * PAGE], other.buffer[7 * PAGE]) == (0, 9)
    other.protect()
    assert other.buffer[7 * PAGE] == 0
    assert "wr" not in flags_of(other.address)


def test_writes_are_not_diverted_where_they_would_not_show(monkeypatch):
    segment = Segment.create(MIB, "test")
    segment.protect()
    monkeypatch.setattr(segment, "diverted_bytes", lambda: 0)
    assert not segment.divert_writes()
    assert "wr" not in flags_of(segment.address)


def test_closing_leaves_the_mapping():
    segment = Segment.create(PAGE, "test")
    part = segment.buffer[10:12]
    segment.buffer[10] = 5
    segment.close()
    segment.close()
    assert segment.fd == -1
    del segment
    gc.collect()
    assert part[0] == 5


def test_descriptors_and_mappings_do_not_pile_up():
    def mappings() -> int:
        with open("/proc/self/maps") as lines:
            return sum("memfd:mpgrad-pile" in line for line in lines)

    before = open_descriptors()
    for _ in range(50):
        segment = Segment.create(MIB, "pile")
        Segment.attach(os.dup(segment.fd)).populate(0, PAGE)
    assert mappings() <= 2
    del segment
    assert open_descriptors() == before
    assert mappings() == 0


HOLDER = """
import os, sys
from mpgrad.shm.segment import Segment
segment = Segment.create(1 << 40, "kill-test")
segment.populate(0, 64 << 20)
print(segment.fd, flush=True)
sys.stdin.read()
"""


def start_holder() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline()
    return child


def kill(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    with child:
        assert child.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_kill_9_frees_the_memory():
    child = start_holder()
    try:
        arenas = {at for at, name in arenas_of(child.pid).items() if name == "kill-test"}
        assert len(arenas) == 1
        assert arena_bytes(child.pid) >= 64 * MIB
        assert not [name for name in os.listdir("/dev/shm") if "mpgrad" in name]
    finally:
        kill(child)
    assert wait_until(lambda: not holders_of(arenas))


@pytest.mark.slow
def test_the_bytes_outlive_the_process_that_made_them():
    child = start_holder()
    try:
        names = f"/proc/{child.pid}/fd"
        number = next(n for n in os.listdir(names) if "kill-test" in os.readlink(f"{names}/{n}"))
        fd = os.open(f"{names}/{number}", os.O_RDWR)
    finally:
        kill(child)
    segment = Segment.attach(fd)
    assert held_bytes(segment) == 64 * MIB
    assert segment.nbytes == 1 << 40


def test_what_a_handler_of_a_signal_raises_meanwhile_stays_what_it_is(monkeypatch):
    def interrupted(fd, offset, nbytes):
        raise TimeoutError("an alarm")

    segment = Segment.create(MIB, "test")
    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    with pytest.raises(TimeoutError, match="an alarm"):
        segment.reserve(0, MIB)
