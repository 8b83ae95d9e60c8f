"""RayHosts: Ray places an actor on each host of its cluster, and tells when one has died."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import inf
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import ray
from ray.autoscaler.sdk import request_resources
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mpgrad.calls.initializing import Initializer
from mpgrad.calls.preloading import preloaded
from mpgrad.engine.cluster.host_actor import HostActor, HostOptions, arithmetic, versions
from mpgrad.engine.cluster.host_calls import HostCalls
from mpgrad.engine.cluster.host_contract import Greeting, RemoteHost, Reply
from mpgrad.engine.cluster.host_demand import HostDemand
from mpgrad.engine.cluster.host_starts import HostStarts
from mpgrad.engine.options import EngineOptions
from mpgrad.errors import EngineClosed, MpgradError

Array: TypeAlias = np.ndarray[Any, Any]

#: The variables of this process that go to all hosts, by how they begin.
_TAKEN_ALONG = ("MPGRAD_", "OPENBLAS_", "MKL_")
#: Seconds that a cluster has to answer.
CONNECT_S = 10.0
#: Threads of an actor for each worker, and those that stop calls.
_CALLS_PER_WORKER, _CONTROL = 4, "control"


def hosts_of(options: EngineOptions) -> HostCalls:
    """The hosts of ``Engine(cluster=...)``, not started yet.

    Raises:
        MpgradError: there is no such cluster.
    """
    cluster = RayHosts(str(options.cluster), _options_of_hosts(options), options.runtime_env)
    mine = Greeting(0, versions(), arithmetic())
    demand = HostDemand(options.min_hosts, options.max_hosts)
    return HostCalls(cluster, HostStarts(mine, options.same_arithmetic), demand)


def _options_of_hosts(options: EngineOptions) -> HostOptions:
    initializer = b""
    if options.initializer is not None:
        code: list[Array] = []
        Initializer(options.initializer, options.initargs).packed(code.append)  # type: ignore[arg-type]
        initializer = code[0].tobytes()
    return HostOptions(
        None if options.is_default_count else options.cpu_workers,
        {
            "shm_limit": None,
            "blas_threads": options.blas_threads,
            "task_timeout_s": options.task_timeout_s,
            "pin": options.pin,
        },
        initializer,
        preloaded(),
        {name: value for name, value in os.environ.items() if name.startswith(_TAKEN_ALONG)},
    )


class RayHosts:
    """The cluster.

    Args:
        address: as ``ray.init`` takes it.
        options: of the engines on its hosts.
        runtime_env: of their processes, as Ray takes it.

    Raises:
        MpgradError: nothing answers there.
    """

    def __init__(
        self, address: str, options: HostOptions, runtime_env: dict[str, Any] | None
    ) -> None:
        self._options, self._runtime_env = options, runtime_env
        self._is_mine = not ray.is_initialized()
        if self._is_mine:
            try:
                _require_listener(address)
                ray.init(address, logging_level=logging.ERROR)
            except Exception as error:
                raise MpgradError(
                    f"Engine(cluster={address!r}): no Ray cluster answers there: {error}. "
                    '`ray start --head` starts one and prints its address; "auto" finds that of '
                    "this machine"
                ) from error
        #: The nodes that have an actor, and those that did not fit.
        self._hosts: dict[str, RayHost] = {}
        self._asked_for: int | None = None

    def new_hosts(self, most: int | None) -> list[RemoteHost]:
        if not ray.is_initialized():  # Ray would start a cluster of its own
            raise EngineClosed("ray.shutdown() has left the cluster")
        found: list[RemoteHost] = []
        for node in ray.nodes():
            name, cpus = node["NodeID"], int(node["Resources"].get("CPU", 0))
            known = self._hosts.get(name)
            is_free = node["Alive"] and (known is None or known.ends_at <= monotonic())
            if is_free and cpus and (most is None or len(found) < most):
                self._hosts[name] = RayHost(node, cpus, self._options, self._runtime_env)
                found.append(self._hosts[name])
        return found

    def ask_for(self, hosts: int | None) -> None:
        if hosts is None or hosts == self._asked_for:
            return
        self._asked_for = hosts
        cpus = self._options.workers or max([host.cpus for host in self._hosts.values()], default=1)
        request_resources(bundles=[{"CPU": cpus}] * hosts)

    def store(self, data: Array) -> Any:
        return ray.put(data)

    def is_loss(self, error: BaseException) -> bool:
        is_rays = isinstance(error, ray.exceptions.RayError)
        return is_rays and not isinstance(error, ray.exceptions.RayTaskError)

    def close(self) -> None:
        if self._asked_for and ray.is_initialized():
            request_resources(bundles=[])
        if self._is_mine and ray.is_initialized():
            ray.shutdown()


class RayHost:
    """The actor on one node.

    Args:
        node: as ``ray.nodes`` describes it.
        cpus: of the node.
        options: of its engine.
        runtime_env: see ``RayHosts``.

    Attributes:
        ends_at: when another actor may take its place.
        cpus: of the node.
    """

    def __init__(
        self,
        node: dict[str, Any],
        cpus: int,
        options: HostOptions,
        runtime_env: dict[str, Any] | None,
    ) -> None:
        self.node = node["NodeID"]
        self.name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        self.ends_at, self.cpus = inf, cpus
        workers = options.workers or cpus
        self._actor = (
            ray.remote(concurrency_groups={_CONTROL: 1})(HostActor)
            .options(
                num_cpus=min(workers, cpus),
                max_restarts=0,
                runtime_env=runtime_env,
                max_concurrency=_CALLS_PER_WORKER * workers,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.node, soft=False),
            )
            .remote(options, cpus)
        )

    def greet(self, end: Callable[[Callable[[], Greeting]], None]) -> None:
        _when_done(self._actor.greet.remote(), end)

    def run(
        self,
        task: bytes,
        data: Sequence[Array],
        stored: Sequence[Any],
        end: Callable[[Callable[[], list[Reply]]], None],
    ) -> None:
        _when_done(self._actor.run.remote(task, data, *stored), end)

    def ask(self, end: Callable[[Callable[[], None]], None]) -> None:
        _when_done(self._actor.ask.options(concurrency_group=_CONTROL).remote(), end)

    def stop(self, number: int, grace_ms: int | None) -> None:
        self._actor.stop.options(concurrency_group=_CONTROL).remote(number, grace_ms)

    def kill(self, pause_s: float = 0.0) -> None:
        self.ends_at = monotonic() + pause_s
        if ray.is_initialized():
            ray.kill(self._actor)


def _require_listener(address: str) -> None:
    """Check that a port answers: Ray would try for minutes.

    Raises:
        OSError: none does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_S).close()


def _when_done(ref: Any, end: Callable[[Callable[[], Any]], None]) -> None:
    def done(future: Future[Any]) -> None:
        end(future.result)

    ref.future().add_done_callback(done)
