"""service(): the RpcService of this process, and how long its calls may take."""

from __future__ import annotations

from mpgrad.distributed.rpc.service import RpcService

#: In place of a number of seconds: as ``init_rpc`` was told.
DEFAULT = -1.0

#: Seconds that a call may take, as in PyTorch.
TIMEOUT_S = 60.0

NOT_INITIALIZED = "RPC has not been initialized. Call mpgrad.distributed.rpc.init_rpc first."


class _Setting:
    service: RpcService | None = None
    timeout_s = TIMEOUT_S


current = _Setting()


def service() -> RpcService:
    """That of this process.

    Raises:
        RuntimeError: there is none.
    """
    if current.service is None:
        raise RuntimeError(NOT_INITIALIZED)
    return current.service


def seconds(timeout: float) -> float:
    """How long a call may take; 0 for any time."""
    return current.timeout_s if timeout == DEFAULT else timeout
