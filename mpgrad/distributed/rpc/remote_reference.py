"""RRef: a reference to a value that one host owns and others hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpgrad.distributed.autograd.dist_backward import backward
from mpgrad.distributed.futures import Future
from mpgrad.distributed.rpc.current_service import DEFAULT, seconds, service
from mpgrad.distributed.rpc.functions import async_execution, checked_future, is_async
from mpgrad.distributed.rpc.references import Home, PassedOn
from mpgrad.distributed.rpc.service import RpcService, WorkerInfo
from mpgrad.distributed.states.remote_values import Identity
from mpgrad.recording.tensors.tensor import Tensor


class RRef:
    """A reference to ``value``, which this process owns; ``rpc.remote`` makes those of others.

    The value lives as long as a reference to it, on any host.

    Args:
        value: anything; it stays in this process.
        type_hint: accepted, as in PyTorch; nothing uses it.

    Raises:
        RuntimeError: ``init_rpc`` has not been called.
    """

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        here = self._service = service()
        self._home = Home(here.rank, here.numbers[here.rank])
        self._value = here.references.new_identity()
        self._fork = here.references.new_identity()
        #: Done when the owner knows of this reference; until then it may be another one.
        self._created: Future | None = None
        self._may_move = False
        held = Future()
        held.set_result(value)
        self._service.own(self._value, self._fork, held)

    def __del__(self) -> None:
        if hasattr(self, "_fork"):
            self._service.release(self._home, self._value, self._fork)

    # ------------------------------------------------------------------ whose it is

    def owner(self) -> WorkerInfo:
        """The process that owns the value."""
        return self._service.infos()[self._home.rank]

    def owner_name(self) -> str:
        """The name of the process that owns the value."""
        return self.owner().name

    def is_owner(self) -> bool:
        """Whether that is this process."""
        return self._home.rank == self._service.rank and self._is_here()

    def _is_here(self) -> bool:
        return self._home.number == self._service.numbers[self._service.rank]

    def _settled(self) -> Home:
        """The process that owns the value, once no other one can come to own it."""
        if self._may_move and self._created is not None:
            self._created.wait()
        return self._home

    def confirmed_by_owner(self) -> bool:
        """Whether the owner knows of this reference."""
        return self._created is None or self._created.done()

    # ------------------------------------------------------------------ the value

    def local_value(self) -> Any:
        """The value, in the process that owns it.

        Raises:
            RuntimeError: this is another process.
        """
        here = self._service.rank
        if not self.is_owner():
            if self._home.rank == here:
                return self.to_here()  # the value has gone with the process that owned it
            raise RuntimeError(
                f"For {self}, can't call localValue() on user {self._service.infos()[here]}. Call "
                f"it on owner {self.owner()}, or use to_here()."
            )
        return self._service.references.held_value(self._value).wait()

    def to_here(self, timeout: float = DEFAULT) -> Any:
        """The value itself in the process that owns it, a copy elsewhere.

        Args:
            timeout: seconds; 0 for any time.

        Raises:
            HostLost: the owner has died.
            RuntimeError: it took too long.
            Exception: what the function raised that should have made the value.
        """
        if self.is_owner():
            return self.local_value()
        return self._call("to_here", _value_of, (self._value,), timeout).wait()

    def _call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], timeout: float
    ) -> Future:
        home, here, what = self._settled(), self._service, f"{name} of RRef {self._value}"
        if here.is_over:
            raise RuntimeError(
                f"RPC has been shut down: Cannot call {name}() on it after deletion."
            )
        return here.calls.make(
            home.rank, function, args, {}, seconds(timeout), home=home, what=what
        )

    def rpc_sync(self, timeout: float = DEFAULT) -> Any:
        """A stand-in for the value: its methods run at the owner, and give their results.

        Args:
            timeout: of each call, in seconds; 0 for any time.
        """
        return _Proxy(self, "rpc_sync", timeout)

    def rpc_async(self, timeout: float = DEFAULT) -> Any:
        """As :meth:`rpc_sync`, but the methods give Futures."""
        return _Proxy(self, "rpc_async", timeout)

    def remote(self, timeout: float = DEFAULT) -> Any:
        """As :meth:`rpc_sync`, but the results stay at the owner, and the methods give RRefs."""
        return _Proxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Run the backward of the value, which is a tensor.

        Args:
            dist_autograd_ctx_id: the autograd context; without it, the owner's ``.grad`` fields get
                the gradients.
            retain_graph: as in ``backward``.

        Raises:
            RuntimeError: the value is no tensor, or as in ``backward``.
        """
        if dist_autograd_ctx_id != -1:
            backward(dist_autograd_ctx_id, [self], retain_graph)
        else:
            self._call("backward", _backward_of, (self._value, retain_graph), DEFAULT).wait()

    def __repr__(self) -> str:
        kind = "OwnerRRef" if self.is_owner() else "UserRRef"
        owner = self._home.rank
        return f"{kind}(RRefId = {self._value}, ForkId = {self._fork}, owner = {owner})"

    def __reduce__(self) -> Any:
        raise RuntimeError(
            "Can not pickle rref in python pickler, rref can only be pickled when using RPC"
        )


def remote_reference(
    here: RpcService,
    owner: int,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    timeout: float,
    *,
    home: Home | None = None,
    repeats: bool = False,
) -> RRef:
    """A reference to what ``function`` will return in rank ``owner``.

    Args:
        here: the service of this process.
        owner, function, args, kwargs: whom to call, and with what.
        timeout: seconds; 0 for any time.
        home: the process of that rank that it is for; by default the present one.
        repeats: if that dies first, the next one.
    """
    value, fork = here.references.new_identity(), here.references.new_identity()
    home = Home(owner, here.numbers[owner] if home is None else home.number)
    created = here.calls.make(
        owner, function, args, kwargs, seconds(timeout), value, fork, home=home, repeats=repeats
    )
    made = _made(here, home, value, fork, created)
    made._may_move = repeats
    return made


def _made(
    here: RpcService, home: Home, value: Identity, fork: Identity, created: Future | None
) -> RRef:
    made = RRef.__new__(RRef)
    made._service, made._home, made._value = here, home, value
    made._created, made._may_move, made._fork = created, False, fork
    return made


# ---------------------------------------------------------------------------- on the way


def reduced(obj: Any, passed: list[PassedOn]) -> tuple[Any, ...] | None:
    """How a reference travels; it is added to what is passed on. None for other objects."""
    if not isinstance(obj, RRef):
        return None
    home, here = obj._settled(), obj._service
    fork = here.references.new_identity()
    passed.append(PassedOn(fork, home, obj))
    return _arrived, (home.rank, home.number, obj._value, fork, here.rank)


def _arrived(owner: int, number: int, value: Identity, fork: Identity, parent: int) -> RRef:
    here, home = service(), Home(owner, number)
    here.hold(home, value, fork, parent)
    return _made(here, home, value, fork, None)


# ---------------------------------------------------------------------------- at the owner


@async_execution
def _value_of(value: Identity) -> Future:
    return service().references.value(value)


def _backward_of(value: Identity, retain_graph: bool) -> None:
    tensor = service().references.value(value).wait()
    if not isinstance(tensor, Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    tensor.backward(retain_graph=retain_graph)


@async_execution
def _call_method(value: Identity, name: str, args: Any, kwargs: Any) -> Future:
    method = getattr(service().references.value(value).wait(), name)
    returned = method(*args, **kwargs)
    if is_async(method):
        return checked_future(returned)
    result = Future()
    result.set_result(returned)
    return result


def _let_go(reference: RRef, _: Future) -> None:
    """Called when a call is over: until then it keeps the reference, and so the value."""


class _Proxy:
    """Calls methods of a value where that is."""

    def __init__(self, reference: RRef, kind: str, timeout: float) -> None:
        self._reference, self._kind, self._timeout = reference, kind, timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        reference, here = self._reference, self._reference._service

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = (reference._value, name, args, kwargs)
            if self._kind == "remote":
                home = reference._settled()
                return remote_reference(
                    here, home.rank, _call_method, arguments, {}, self._timeout, home=home
                )
            future = reference._call(name, _call_method, arguments, self._timeout)
            future.add_done_callback(functools.partial(_let_go, reference))
            return future.wait() if self._kind == "rpc_sync" else future

        return call
