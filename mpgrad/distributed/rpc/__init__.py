"""Functions of one host that others call, with the names of ``torch.distributed.rpc``.

Not here: graphs that span hosts (``distributed.autograd``). Begin with ``remote_calls``.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

_NAMES_OF = {
    "mpgrad.distributed.rpc.remote_calls": (
        "BackendType RpcBackendOptions TensorPipeRpcBackendOptions get_worker_info init_rpc remote "
        "rpc_async rpc_sync shutdown"
    ),
    "mpgrad.distributed.rpc.remote_reference": "RRef",
    "mpgrad.distributed.rpc.service": "WorkerInfo",
}
_HOME = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
#: Public names that are modules.
_SUBMODULES = ("functions",)

__all__ = [*_HOME, *_SUBMODULES]

__getattr__, __dir__ = _attach(
    __name__, _HOME, submodules=_SUBMODULES, first="mpgrad.tensor_methods"
)
