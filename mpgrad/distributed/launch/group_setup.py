"""What the ranks of a group are given before they start: a port of rank 0, and a key."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

from mpgrad.base.unnamed_file import unnamed_file


class Others(NamedTuple):
    """The first hosts of a job, on one of which is rank 0, and what its ranks know of the group."""

    hosts: int
    master_address: str
    master_port: int
    key: bytes


@contextlib.contextmanager
def reserved_port(address: str) -> Iterator[int]:
    """A port that nobody else is given, and that rank 0 can listen at.

    The socket is bound and does not listen: so another one with SO_REUSEADDR may take the port, but
    the kernel draws it for nobody.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def key_file(key: bytes) -> Iterator[int]:
    """A descriptor of memory with a key: it has no name, and ends with its last process."""
    descriptor = unnamed_file("mpgrad-group-key")
    try:
        os.write(descriptor, key)
        yield descriptor
    finally:
        os.close(descriptor)
