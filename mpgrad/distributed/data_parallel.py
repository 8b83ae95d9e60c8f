"""DistributedDataParallel: one model on all ranks, each of which sees its own part of the data."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mpgrad.base.context_manager import contextmanager
from mpgrad.base.device import CPU
from mpgrad.distributed.collectives import all_gather_into_tensor, broadcast
from mpgrad.distributed.process_group import ProcessGroup, get_global_rank, group_of
from mpgrad.distributed.reducer import CommHook, Reducer
from mpgrad.distributed.tensor_buffers import flat_copy, put
from mpgrad.distributed.uneven_inputs import UnevenInputs
from mpgrad.nn.module import Module
from mpgrad.nn.parallel import scatter
from mpgrad.ops.new_tensors.creation import empty, from_numpy
from mpgrad.recording.graph.grad_modes import is_grad_enabled
from mpgrad.recording.tensors.tensor import Tensor

_DEPRECATED = (
    "`broadcast_buffers` is deprecated. Use `forward_sync_buffers` instead. Unlike "
    "`broadcast_buffers=False`, `forward_sync_buffers=False` makes buffers those of rank 0 at the "
    "start."
)


class DistributedDataParallel(Module):
    """Averages the gradients of ``module`` over the ranks, while ``backward()`` runs.

    The average of N ranks has the bits of one process that runs the N parts, adds their gradients
    by ``mpgrad.distributed.tree_sum`` and divides by N.

    Args:
        module: the model; on all ranks it becomes that of rank 0.
        device_ids: None, or the one device that inputs are moved to.
        output_device: only there for PyTorch's callers.
        dim: only there for PyTorch's callers.
        broadcast_buffers: deprecated, as in PyTorch: the same as ``forward_sync_buffers``, but that
            False leaves the buffers as they are now, too.
        init_sync: whether parameters and buffers become those of rank 0 now.
        process_group: of ranks; the world by default.
        bucket_cap_mb: MiB of gradients that travel together; 25 by default.
        find_unused_parameters: some parameters may have no part in some losses.
        check_reduction: only there for PyTorch's callers.
        gradient_as_bucket_view: changes nothing.
        static_graph: every backward gives each parameter a gradient as often as the first one
            does, perhaps never or several times.
        skip_all_reduce_unused_params, batched_grad_copy: change nothing.
        forward_sync_buffers: before each forward, and after ``join``, the buffers become those of
            one rank; so by default.

    Raises:
        RuntimeError: the module has nothing to train, or differs from that of another rank.
        ValueError: ``device_ids`` or ``output_device`` do not fit.
    """

    #: The attribute of a module that names what this class leaves alone.
    _IGNORED = "_ddp_params_and_buffers_to_ignore"

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        skip_all_reduce_unused_params: bool = False,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        self.parameters_to_ignore = set(getattr(module, self._IGNORED, ()))
        trained = [
            (name, p) for name, p in self._shared(module.named_parameters()) if p.requires_grad
        ]
        if not trained:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter "
                "that requires a gradient."
            )
        _check_devices(trained, device_ids, output_device)
        self.module = module
        self.device_ids = None if not device_ids else list(device_ids)
        self.process_group = group_of(process_group)
        self.forward_sync_buffers = broadcast_buffers is not False
        if broadcast_buffers is not None:
            warnings.warn(_DEPRECATED, FutureWarning, stacklevel=2)
        if forward_sync_buffers is not None:
            self.forward_sync_buffers = forward_sync_buffers
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self._uneven: UnevenInputs | None = None
        state = [*self._shared(module.named_parameters()), *self._shared(module.named_buffers())]
        _check_equal(state, self.process_group)
        if init_sync:
            with_buffers = broadcast_buffers is not False or forward_sync_buffers is not None
            copy_of(0, self._state(with_buffers=with_buffers), self.process_group)
        self.bucket_bytes_cap = int((25 if bucket_cap_mb is None else bucket_cap_mb) * 1024 * 1024)
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.reducer = self._new_reducer()

    def _new_reducer(self) -> Reducer:
        parameters = self._shared(self.module.named_parameters())
        return Reducer(
            [(name, p) for name, p in parameters if p.requires_grad],
            self.process_group,
            self.bucket_bytes_cap,
            finds_unused=self.find_unused_parameters,
            is_static=self.static_graph,
        )

    def _shared(self, named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Those of the module's that are not to be left alone."""
        return [(name, one) for name, one in named if name not in self.parameters_to_ignore]

    def _state(self, *, with_buffers: bool) -> list[Tensor]:
        """What becomes that of one rank."""
        named = self._shared(self.module.named_parameters())
        named += self._shared(self.module.named_buffers()) if with_buffers else []
        return [tensor for _, tensor in named]

    def __getstate__(self) -> dict[str, Any]:
        """All but what belongs to this process; :class:`RuntimeError` where it is not the world."""
        if self.process_group is not group_of(None):
            raise RuntimeError(
                "DDP Pickling/Unpickling are only supported when using DDP with the default "
                "process group. That is, when you have called init_process_group and have not "
                "passed process_group argument to DDP constructor"
            )
        own = ("process_group", "reducer", "_uneven")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.process_group, self._uneven = group_of(None), None
        self.reducer = self._new_reducer()

    @property
    def broadcast_buffers(self) -> bool:
        """As ``forward_sync_buffers``."""
        return self.forward_sync_buffers

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module: Module, names: Iterable[str]) -> None:
        """Have parameters and buffers of these names left alone by who wraps ``module`` later."""
        setattr(module, DistributedDataParallel._IGNORED, names)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's output; its backward averages the gradients."""
        syncs = is_grad_enabled() and self.require_backward_grad_sync
        if syncs:
            self.reducer.check_finished()
        copies_buffers = self.forward_sync_buffers and self.require_forward_param_sync
        source, divisor = 0, self.process_group.size()
        if self._uneven is not None:
            now = self._uneven.go_on(copies_buffers=copies_buffers, averages=syncs)
            source, divisor = now.source, self._uneven.divisor(now)
        self._synchronize(source, copies_buffers=copies_buffers, averages=syncs)
        if self.device_ids:
            inputs = scatter(inputs, self.device_ids)[0] if inputs else inputs
            kwargs = scatter(kwargs, self.device_ids)[0] if kwargs else kwargs
        output = self.module(*inputs, **kwargs)
        self.require_forward_param_sync = syncs
        if syncs:
            self.reducer.prepare(_tensors(output), divisor)
        elif is_grad_enabled():
            self.reducer.skip()
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes of forwards in here leave the gradients where they are.

        They add up, and the first backward outside averages the sums.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """The loop in here may have more turns on some ranks than on others.

        A rank that has left it takes part in the averages of the others with zeros. In the end all
        have the parameters and buffers of the last rank of those that ran longest.

        Args:
            divide_by_initial_world_size: averages are over all ranks; else over those that have
                inputs.
            enable: False: do nothing.
            throw_on_early_termination: all ranks raise RuntimeError when one has left the loop and
                others have not.
        """
        if not enable:
            yield
            return
        self._uneven = uneven = UnevenInputs(
            self.process_group,
            divides_by_all=divide_by_initial_world_size,
            throws=throw_on_early_termination,
        )
        try:
            yield
            while (now := uneven.rest()) is not None:
                self._synchronize(
                    now.source, copies_buffers=now.copies_buffers, averages=now.averages
                )
                if now.averages:
                    self.reducer.take_part()
        finally:
            self._uneven = None
        state = self._state(with_buffers=self.forward_sync_buffers)
        copy_of(uneven.last_active[-1], state, self.process_group)

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Have ``hook(state, bucket)`` reduce the gradients, one bucket after another.

        Args:
            state: what the hook gets.
            hook: gives a Future of the Tensor that becomes the bucket's gradients; it divides. See
                ``mpgrad.distributed.algorithms.ddp_comm_hooks.default_hooks``.

        Raises:
            RuntimeError: there is one already.
            TypeError: it cannot be called.
        """
        self.reducer.register_comm_hook(state, hook)

    def _synchronize(self, source: int, *, copies_buffers: bool, averages: bool) -> None:
        """What all ranks do before a forward, also those that have joined."""
        if averages:
            self.reducer.rebuild(source)
        if copies_buffers:
            buffers = [buffer for _, buffer in self._shared(self.module.named_buffers())]
            copy_of(source, buffers, self.process_group)


def copy_of(source: int, tensors: Sequence[Tensor], group: ProcessGroup) -> None:
    """Make ``tensors`` those of rank ``source`` of ``group``, with one message for each dtype."""
    by_dtype: dict[np.dtype[Any], list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor._array.dtype, []).append(tensor)
    root = get_global_rank(group, source)
    for same in by_dtype.values():
        flat = from_numpy(np.concatenate([flat_copy(tensor) for tensor in same]))
        broadcast(flat, root, group)
        if group.rank() != source:
            at = 0
            for tensor in same:
                put(tensor, flat.numpy()[at : at + tensor.numel()])
                at += tensor.numel()


def _check_devices(
    trained: Iterable[tuple[str, Tensor]], device_ids: Sequence[Any] | None, output_device: Any
) -> None:
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(
            "device_ids can only be None or contain a single element, got "
            f"{list(device_ids)}: there is one process for each device"
        )
    devices = {parameter.device for _, parameter in trained}
    if (device_ids or output_device) and (len(devices) > 1 or CPU in devices):
        raise ValueError(
            "DistributedDataParallel device_ids and output_device arguments only work with "
            f"single-device GPU modules, but got device_ids {device_ids}, output_device "
            f"{output_device}, and module parameters {devices}."
        )


def _check_equal(state: Iterable[tuple[str, Tensor]], group: ProcessGroup) -> None:
    """Raise if the parameters or buffers of another rank have other names, shapes or dtypes."""
    text = "\n".join(
        f"{name} {tuple(tensor.shape)} {tensor._array.dtype} {tensor.requires_grad}"
        for name, tensor in state
    )
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
    digests = empty((group.size(), len(digest)), dtype=np.uint8)
    all_gather_into_tensor(digests, from_numpy(np.frombuffer(digest, np.uint8).copy()), group)
    others = [k for k, row in enumerate(digests.numpy()) if row.tobytes() != digest]
    if others:
        raise RuntimeError(
            "DDP expects same model across all ranks, but the parameters or buffers of rank "
            f"{group.rank()} have other names, shapes or dtypes than those of rank "
            f"{', '.join(map(str, others))}"
        )


def _tensors(output: Any) -> Iterator[Tensor]:
    """All tensors in an output of a module."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)
