"""DistributedOptimizer: each host steps the parameters that it owns."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mpgrad.distributed.autograd.dist_backward import get_gradients
from mpgrad.distributed.futures import Future, collect_all
from mpgrad.distributed.rpc.remote_calls import rpc_async
from mpgrad.distributed.rpc.remote_reference import RRef

#: Steps of several trainers do not mix: parameters and ``.grad`` belong to one at a time.
_lock = threading.Lock()


class _OwnersPart:
    """An optimizer of parameters that this process owns."""

    def __init__(self, cls: type[Any], parameters: list[RRef], args: Any, kwargs: Any) -> None:
        self._parameters = [reference.local_value() for reference in parameters]
        self._optimizer = cls(self._parameters, *args, **kwargs)

    def step(self, context_id: int) -> None:
        """One step with the gradients of a context; the ``.grad`` fields are as before."""
        gradients = get_gradients(context_id)
        with _lock:
            before = [parameter.grad for parameter in self._parameters]
            try:
                for parameter in self._parameters:
                    parameter.grad = gradients.get(parameter)
                self._optimizer.step()
            finally:
                for parameter, grad in zip(self._parameters, before, strict=True):
                    parameter.grad = grad


class DistributedOptimizer:
    """Steps parameters of several hosts, each where it is.

    Args:
        optimizer_class: of ``mpgrad.optim``, or a user's; each owner makes one.
        params_rref: RRefs to the parameters.
        args: further arguments of ``optimizer_class``.
        kwargs: further arguments of ``optimizer_class``.

    Raises:
        Exception: what ``optimizer_class`` has raised at an owner.
    """

    def __init__(
        self, optimizer_class: type[Any], params_rref: Sequence[RRef], *args: Any, **kwargs: Any
    ) -> None:
        by_owner: dict[int, list[RRef]] = {}
        for reference in params_rref:
            by_owner.setdefault(reference.owner().id, []).append(reference)
        made = [
            rpc_async(owner, _new_part, (optimizer_class, references, args, kwargs))
            for owner, references in by_owner.items()
        ]
        #: The owners' parts.
        self._parts: list[RRef] = [part.wait() for part in collect_all(made).wait()]

    def step(self, context_id: int) -> None:
        """One step with the gradients of a context, at all owners at once.

        Raises:
            RuntimeError: there is no such context.
            Exception: what the optimizer of an owner has raised; others may have stepped.
        """
        if type(context_id) is not int:
            raise TypeError(f"the id of a context is an int, not {type(context_id).__name__}")
        steps: list[Future] = [part.rpc_async().step(context_id) for part in self._parts]
        for ended in collect_all(steps).wait():
            ended.wait()


def _new_part(cls: type[Any], parameters: list[RRef], args: Any, kwargs: Any) -> RRef:
    return RRef(_OwnersPart(cls, parameters, args, kwargs))
