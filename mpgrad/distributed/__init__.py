"""Programs of several processes, on one host or many, with the names of ``torch.distributed``.

Not here: what the hosts decide (``states``), and the engine inside one host. Begin with
``process_group``.
"""

from __future__ import annotations

from mpgrad.base.lazy import attach as _attach

_NAMES_OF = {
    "mpgrad.distributed.process_group": (
        "ProcessGroup destroy_process_group get_backend get_global_rank get_group_rank "
        "get_process_group_ranks get_rank get_world_size init_process_group is_available "
        "group is_initialized is_torchelastic_launched new_group"
    ),
    "mpgrad.distributed.backend_names": (
        "Backend is_backend_available is_gloo_available is_mpi_available is_nccl_available "
        "is_ucc_available is_xccl_available"
    ),
    "mpgrad.distributed.subgroups": "new_subgroups new_subgroups_by_enumeration",
    "mpgrad.distributed.reductions": (
        "ReduceOp all_reduce barrier monitored_barrier reduce reduce_scatter reduce_scatter_single "
        "reduce_scatter_tensor supports_complex tree_sum"
    ),
    "mpgrad.distributed.collectives": (
        "all_gather all_gather_into_tensor all_gather_single all_to_all all_to_all_single "
        "broadcast gather scatter"
    ),
    "mpgrad.distributed.coalesced": "all_gather_coalesced all_reduce_coalesced",
    "mpgrad.distributed.object_collectives": (
        "all_gather_object broadcast_object_list gather_object scatter_object_list"
    ),
    "mpgrad.distributed.grad_bucket": "GradBucket",
    "mpgrad.distributed.point_to_point": "P2POp batch_isend_irecv irecv isend recv send",
    "mpgrad.distributed.operation": "Work",
}
#: Public names that are modules.
_SUBMODULES = ("autograd", "elastic", "futures", "nn", "optim", "rpc")
_HOME = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = [*_HOME, *_SUBMODULES]

__getattr__, __dir__ = _attach(
    __name__, _HOME, submodules=_SUBMODULES, first="mpgrad.tensor_methods"
)
