"""service(): the RpcService of this process, and how long its calls may take."""

from __future__ import annotations

import os

from mpgrad.distributed.rpc.service import RpcService

#: In place of a number of seconds: as ``init_rpc`` was told.
DEFAULT = -1.0

#: Seconds that a call may take, as in PyTorch.
TIMEOUT_S = 60.0

NOT_INITIALIZED = "RPC has not been initialized. Call mpgrad.distributed.rpc.init_rpc first."


class _Setting:
    service: RpcService | None = None
    timeout_s = TIMEOUT_S

    def forget_in_child(self) -> None:
        """The threads and the connections of the service are the parent's."""
        self.service = None


current = _Setting()
os.register_at_fork(after_in_child=current.forget_in_child)


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
