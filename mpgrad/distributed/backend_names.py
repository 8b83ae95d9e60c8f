"""The names of what carries messages between ranks: PyTorch's stand for the one that is here."""

from __future__ import annotations

from typing import Any

#: The one way between hosts today: ZeroMQ over TCP.
LANES = "lanes"
#: PyTorch's backends, in whose place programs for it get lanes.
_OF_PYTORCH = ("gloo", "nccl", "mpi")


class Backend(str):
    """A backend's name in small letters, as ``init_process_group`` takes it.

    Args:
        name: in any letters; names that are not known stay as they are.

    Raises:
        ValueError: it is no str.
    """

    __slots__ = ()

    UNDEFINED = "undefined"
    LANES = LANES
    GLOO = "gloo"
    NCCL = "nccl"
    UCC = "ucc"
    MPI = "mpi"
    XCCL = "xccl"

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise ValueError("Backend constructor parameter must be string-ish")
        return super().__new__(cls, name.lower())


def is_backend_available(backend: str) -> bool:
    """Whether ``init_process_group`` takes this name."""
    return isinstance(backend, str) and is_known(backend)


def is_gloo_available() -> bool:
    """True: what Gloo does, collectives of tensors on the CPU over TCP, lanes do in its place."""
    return True


def is_nccl_available() -> bool:
    """False: tensors on GPUs travel through the memory of the host."""
    return False


def is_mpi_available() -> bool:
    """False: there is no MPI."""
    return False


def is_ucc_available() -> bool:
    """False: there is no UCC."""
    return False


def is_xccl_available() -> bool:
    """False: there is no XCCL."""
    return False


def is_known(backend: Any) -> bool:
    """Whether all of "lanes", "gloo" or "cpu:gloo,cuda:nccl" are names that stand for lanes."""
    names = [part.partition(":")[2] or part for part in str(backend).lower().split(",")]
    return all(name in (LANES, *_OF_PYTORCH) for name in names)
