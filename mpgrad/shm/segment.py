"""Segment: anonymous shared memory in a sealed memfd, mapped once per process.

It has no name, so the kernel frees it when its last process ends, for any reason. This module knows
no blocks and does not load NumPy.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable

from mpgrad.base import machine
from mpgrad.base.refused_calls import is_from_kernel, named, refused
from mpgrad.base.standard_streams import occupy_standard_streams
from mpgrad.errors import ProtocolError, SharedMemoryExhausted

#: A segment never changes its size: a smaller one would kill its readers with SIGBUS.
REQUIRED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_USE = "shared memory"

#: Linux 5.14; the standard library has no name for it yet.
_MADV_POPULATE_WRITE = 23

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
#: Copies of the pages that are written. It reserves nothing: a segment may be a sparse terabyte.
_PRIVATE = mmap.MAP_PRIVATE | _MAP_NORESERVE
_MAP_FAILED = ctypes.c_void_p(-1).value

# The kernel undoes an interrupted fallocate, so one call must end before the next signal of a
# profiler's timer: 8 MiB take two milliseconds.
_RESERVE_STEP_BYTES = 8 << 20

_live_segments: weakref.WeakSet[Segment] = weakref.WeakSet()


def copy_of(pid: int, name: str) -> bytes:
    """A copy of the segment of that name of a process of the same user.

    Raises:
        OSError: there is no such process, or it belongs to somebody else.
        LookupError: it has no such segment.
    """
    folder = f"/proc/{pid}/fd"
    for link in [f"{folder}/{number}" for number in os.listdir(folder)]:
        with contextlib.suppress(OSError):
            if f"memfd:mpgrad-{name} " not in f"{os.readlink(link)} ":
                continue
            descriptor = os.open(link, os.O_RDONLY)
            try:
                with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
                    return mapped[:]
            finally:
                os.close(descriptor)
    raise LookupError(f"process {pid} has no {name}")


class Segment:
    """A mapped memfd, excluded from core dumps.

    The mapping is never removed explicitly: it ends when the segment, every array over it and every
    slice of ``buffer`` are gone. Unmapping under a NumPy array would be a segmentation fault.

    Attributes:
        fd: the descriptor to hand to other processes, -1 after ``close()``.
        nbytes: the segment's size; pages exist only where they were touched or reserved.
        address: where the mapping starts in this process.
        buffer: the mapping, writable until ``protect``.
        is_private: True in a forked child, which sees the bytes but no longer shares them.
    """

    def __init__(self, fd: int, nbytes: int, name: str) -> None:
        self._mapping = mmap.mmap(fd, nbytes, mmap.MAP_SHARED)
        # In a core dump the kernel would otherwise create every page of a sparse terabyte.
        with contextlib.suppress(OSError):
            self._mapping.madvise(mmap.MADV_DONTDUMP)
        self.fd, self.nbytes, self.name = fd, nbytes, name
        self._inode = os.fstat(fd).st_ino
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.buffer = memoryview(self._mapping)
        #: /proc/self/smaps, open while writes are diverted.
        self._mappings_fd = -1
        self.is_private = False
        _live_segments.add(self)

    @classmethod
    def create(cls, nbytes: int, name: str) -> Segment:
        """A new segment of at least ``nbytes`` (rounded up to whole pages), all zeros, no pages.

        Raises:
            OSError: the address space or the number of descriptors is limited below that, or the
                system refuses shared memory; the message names the call.
        """
        nbytes = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        occupy_standard_streams()
        with named("memfd_create", _USE):
            fd = os.memfd_create(f"mpgrad-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with named("ftruncate", _USE):
                os.ftruncate(fd, nbytes)
            with named("fcntl(F_ADD_SEALS)", _USE):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, REQUIRED_SEALS)
            with named("mmap", _USE):
                return cls(fd, nbytes, name)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def create_sparse(cls, nbytes: int, name: str) -> Segment:
        """A new segment of ``nbytes``, or of as many as the limits of this process allow.

        Raises:
            OSError: they do not even allow one page.
        """
        nbytes = min(nbytes, machine.mappable_bytes() or nbytes)
        while True:
            try:
                return cls.create(nbytes, name)
            except OSError as error:
                if error.errno not in (errno.ENOMEM, errno.EFBIG):
                    raise
                # Many sparse terabytes fill the 47 bits of addresses.
                if nbytes > mmap.PAGESIZE:
                    nbytes //= 2
                    continue
                raise OSError(
                    error.errno,
                    f"{error.strerror}: this process may not have {mmap.PAGESIZE:,} bytes of "
                    f"shared memory ({name}); `ulimit -v` and `ulimit -f` say how much. Raise "
                    'them, or use Engine(mode="local"), which needs none',
                ) from None

    @classmethod
    def attach(cls, fd: int, name: str = "segment") -> Segment:
        """Map a segment that another process created; ``fd`` belongs to the result.

        Raises:
            ProtocolError: ``fd`` is no memfd, may change its size, or is empty. It is closed.
        """
        try:
            nbytes = _verified_size(fd)
            # Programs that user code starts must not inherit it and keep the memory alive.
            os.set_inheritable(fd, False)
            return cls(fd, nbytes, name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise

    def require_open(self) -> None:
        """Check that ``fd`` is still this segment's descriptor, before it is passed on.

        Raises:
            OSError: other code has closed it.
        """
        try:
            is_own = os.fstat(self.fd).st_ino == self._inode
        except OSError:
            is_own = False
        if not is_own:
            raise OSError(
                errno.EBADF,
                f"the descriptor of this process's {self.name} has been closed by other code "
                "(os.closerange?), so no worker can be given it. Close only what is your own; "
                'Engine(mode="local") needs no descriptors',
            )

    def reserve(self, offset: int, nbytes: int) -> None:
        """Give the range physical pages now, so that no later access can run out of memory.

        Otherwise the first access without memory raises SIGBUS, which kills the process.

        Raises:
            SharedMemoryExhausted: the kernel has no pages left.
            OSError: it refuses to reserve any.
            ValueError: the range leaves the segment.
        """
        self._check_range(offset, nbytes)
        end = offset + nbytes
        for start in range(offset, end, _RESERVE_STEP_BYTES):
            try:
                os.posix_fallocate(self.fd, start, min(_RESERVE_STEP_BYTES, end - start))
            except OSError as error:
                if not is_from_kernel(error):
                    raise
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                    raise refused("fallocate", error.errno or 0, _USE) from error
                raise SharedMemoryExhausted(nbytes, offset, self.nbytes, self.name) from error

    def populate(self, offset: int, nbytes: int) -> None:
        """``reserve`` the range and map its pages here, at once instead of by page faults."""
        self.reserve(offset, nbytes)
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        # The pages exist now: if the kernel is too old, the first access maps them.
        with contextlib.suppress(OSError):
            self._mapping.madvise(_MADV_POPULATE_WRITE, start, offset + nbytes - start)

    def punch(self, offset: int, nbytes: int) -> None:
        """Return the pages of the range to the kernel; the range then reads as zeros.

        Both must be multiples of the page size. A kernel that cannot take pages back (gVisor's)
        keeps them with their content.

        Raises:
            ValueError: the range leaves the segment, or is not made of whole pages.
        """
        self._check_range(offset, nbytes)
        if offset % mmap.PAGESIZE or nbytes % mmap.PAGESIZE:
            raise ValueError(f"cannot punch {nbytes} bytes at {offset}: not whole pages")
        if not nbytes or self.is_private:
            return
        try:
            self._mapping.madvise(mmap.MADV_REMOVE, offset, nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP):
                raise

    def close(self, _close: Callable[[int], None] = os.close) -> None:
        """Close the descriptor; the mapping stays as long as something refers to it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            _close(fd)

    def __del__(self) -> None:
        # May run after the globals of this module are gone, hence the bound argument.
        if getattr(self, "fd", -1) >= 0:
            self.close()

    def make_private(self) -> None:
        """Map the same bytes copy-on-write at the same address, and close the descriptor.

        This is for the child of a fork: it may go on using its tensors, and its writes do not reach
        the parent. As with any private mapping of a file, a page that the child has not written may
        still show later writes of the parent.
        """
        self.is_private = True
        if self.fd < 0 or not self._map_again(_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE):
            # There is no descriptor, or strict overcommit: then the child may only read.
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            libc.mprotect(self.address, self.nbytes, mmap.PROT_READ)
        self.close()

    # ------------------------------------------------------------------ reading only

    def protect(self) -> None:
        """Map it for reading only: a write of this process, in whatever language, is a fault.

        It also drops what was written since ``divert_writes``.

        Raises:
            OSError: the kernel refuses.
        """
        if not self._map_again(mmap.MAP_SHARED, mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), f"{self.name} cannot be mapped for reading only")
        self.buffer = self.buffer.toreadonly()
        self._close_mappings()

    def _close_mappings(self) -> None:
        if self._mappings_fd >= 0:
            os.close(self._mappings_fd)
            self._mappings_fd = -1

    def divert_writes(self) -> bool:
        """Let this process write into pages of its own, until ``protect``; what it does not write
        is shared as before.

        Returns:
            False if that, or ``diverted_bytes``, is not possible here.
        """
        try:
            # Opened now: user code may use up all descriptors.
            mappings = os.open("/proc/self/smaps", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        self._mappings_fd = mappings
        if not self._map_again(_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE):
            self._close_mappings()
            return False
        ctypes.memmove(self.address, self.address, 1)  # a first page, to see whether it shows
        try:
            shows = self.diverted_bytes() > 0
        except (OSError, ValueError):
            shows = False
        if not shows:
            self.protect()
        return shows

    def diverted_bytes(self) -> int:
        """The bytes of the pages that this process has written since ``divert_writes``.

        Raises:
            OSError, ValueError: the kernel does not say it.
        """
        os.lseek(self._mappings_fd, 0, os.SEEK_SET)
        lines = iter(_read_to_end(self._mappings_fd).splitlines())
        start = b"%x-" % self.address
        for line in lines:
            if line.startswith(start):
                break
        for line in lines:
            if line.startswith(b"Anonymous:"):
                return int(line.split()[1]) << 10
        raise ValueError(f"the kernel does not show the mapping of {self.name}")

    def _map_again(self, flags: int, protection: int) -> bool:
        """Replace the mapping, at the same address; whether the kernel has done it."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        flags |= _MAP_FIXED
        mapped = libc.mmap(self.address, self.nbytes, protection, flags, self.fd, 0)
        if mapped == _MAP_FAILED:
            return False
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.madvise(self.address, self.nbytes, mmap.MADV_DONTDUMP)
        return True

    def _check_range(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(
                f"{nbytes} bytes at offset {offset} leave the segment of {self.nbytes} bytes"
            )


def _read_to_end(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _verified_size(fd: int) -> int:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        nbytes = os.fstat(fd).st_size
    except OSError as error:
        raise ProtocolError(f"descriptor {fd} is not a shared-memory segment: {error}") from error
    if seals & REQUIRED_SEALS != REQUIRED_SEALS:
        raise ProtocolError(
            f"descriptor {fd} is not sealed against resizing (seals {seals:#x}); "
            "reading it could kill this process"
        )
    if nbytes <= 0 or nbytes % mmap.PAGESIZE:
        raise ProtocolError(f"descriptor {fd} has {nbytes} bytes, which is no whole page count")
    return nbytes


def _make_all_private() -> None:
    for segment in list(_live_segments):
        segment.make_private()


os.register_at_fork(after_in_child=_make_all_private)
