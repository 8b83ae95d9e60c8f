"""The public names of mpgrad.distributed.rpc, which ``__init__.py`` loads on first use."""

from mpgrad.distributed.rpc import functions as functions
from mpgrad.distributed.rpc.remote_calls import BackendType as BackendType
from mpgrad.distributed.rpc.remote_calls import RpcBackendOptions as RpcBackendOptions
from mpgrad.distributed.rpc.remote_calls import (
    TensorPipeRpcBackendOptions as TensorPipeRpcBackendOptions,
)
from mpgrad.distributed.rpc.remote_calls import get_worker_info as get_worker_info
from mpgrad.distributed.rpc.remote_calls import init_rpc as init_rpc
from mpgrad.distributed.rpc.remote_calls import remote as remote
from mpgrad.distributed.rpc.remote_calls import rpc_async as rpc_async
from mpgrad.distributed.rpc.remote_calls import rpc_sync as rpc_sync
from mpgrad.distributed.rpc.remote_calls import shutdown as shutdown
from mpgrad.distributed.rpc.remote_reference import RRef as RRef
from mpgrad.distributed.rpc.service import WorkerInfo as WorkerInfo
