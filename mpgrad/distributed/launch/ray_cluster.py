"""``mpgrad run --address``: the ranks of a script on hosts that Ray chooses.

Ray places one agent on each host, and tells when one has died. Each agent starts ``mpgrad run``
there. Tensors travel between the ranks, never through Ray.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import ray
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from mpgrad.compat.script import refusal
from mpgrad.distributed.launch.group_setup import Others
from mpgrad.distributed.launch.rank_lines import say, write
from mpgrad.distributed.launch.ranks import AFTER_FAILURE_S, AFTER_SIGNAL_S, ENDING, PASSED_ON
from mpgrad.distributed.launch.ray_agent import RayAgent

#: Seconds that Ray has to find the hosts.
PLACEMENT_S = 60.0
#: Seconds between two looks at signals and time.
TURN_S = 0.2
#: The variables of this process that go to all hosts, by how they begin.
_TAKEN_ALONG = ("MPGRAD_", "OMP_", "OPENBLAS_", "MKL_", "PYTHON")
#: The exit code of a host that is gone: 128 + SIGKILL.
LOST = 137


def launch_on_ray(
    address: str,
    arguments: Sequence[str],
    nodes: int,
    per_node: int,
    cpus: int,
    *,
    others: Others | None = None,
) -> int:
    """Run ``mpgrad run`` on hosts of a cluster, and wait for all of them.

    Args:
        address: of the cluster, as ``ray.init`` takes it.
        arguments: of each ``mpgrad run``: options, the script, its arguments.
        nodes: hosts of the job.
        per_node: ranks on each.
        cpus: that Ray counts as taken on each.
        others: the first of the hosts, if somebody else starts their ranks. Ray chooses as many
            different ones as are left.

    Returns:
        0, or the exit code of the first host that failed; 2 where there are not enough hosts.
    """
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        return refusal(f"cannot connect to a Ray cluster at {address!r}: {error}")
    numbers = range(others.hosts if others is not None else 0, nodes)
    with contextlib.ExitStack() as stack:
        stack.callback(ray.shutdown)
        group = placement_group([{"CPU": cpus}] * len(numbers), strategy="STRICT_SPREAD")
        stack.callback(remove_placement_group, group)
        if not group.wait(PLACEMENT_S):
            alive = sum(node["Alive"] for node in ray.nodes())
            return refusal(
                f"Ray found no {len(numbers)} hosts with {cpus} free CPUs each within "
                f"{PLACEMENT_S:g} s; the cluster has {alive} hosts"
            )
        # An agent never starts again; each call of it has a thread.
        kind = ray.remote(num_cpus=cpus, max_restarts=0, max_concurrency=4)(RayAgent)
        agents = {
            number: kind.options(placement_group=group, placement_group_bundle_index=index).remote()
            for index, number in enumerate(numbers)
        }
        for agent in agents.values():
            stack.callback(ray.kill, agent)
        if others is None:
            host, key = _address_of_first(group), secrets.token_bytes(32)
            port = ray.get(agents[0].port.remote(host))
        else:
            _, host, port, key = others
        where = ["--nnodes", str(nodes), "--nproc-per-node", str(per_node)]
        where += ["--master-addr", host, "--master-port", str(port)]
        variables = {k: v for k, v in os.environ.items() if k.startswith(_TAKEN_ALONG)}
        starts = [
            agent.start.remote(
                [*where, "--node-rank", str(number), *arguments], variables, os.getcwd(), key
            )
            for number, agent in agents.items()
        ]
        for number, why in zip(numbers, ray.get(starts), strict=True):
            if why:
                return refusal(f"host {number} of {nodes} cannot start: {why}")
        with _passing_signals_on([*agents.values()]) as signals:
            return _wait(agents, signals)


def _address_of_first(group: Any) -> str:
    """The address of the host that Ray has chosen first."""
    node = placement_group_table(group)["bundles_to_node_id"][0]
    [address] = [n["NodeManagerAddress"] for n in ray.nodes() if n["NodeID"] == node]
    return str(address)


def _wait(agents: Mapping[int, Any], signals: list[signal.Signals]) -> int:
    """Print what all hosts say until all have ended; the exit code."""
    code, reads = 0, {agent.said.remote(): number for number, agent in agents.items()}
    #: When the hosts that are left get which signal; None while all is well.
    next_signal: tuple[float, signal.Signals] | None = None
    while reads:
        ready, _ = ray.wait([*reads], timeout=TURN_S)
        for ref in ready:
            number = reads.pop(ref)
            ended = _print(ref, number)
            if ended is None:
                reads[agents[number].said.remote()] = number
            elif ended and not code:
                code = ended
                next_signal = next_signal or (time.monotonic() + AFTER_FAILURE_S, signal.SIGTERM)
        if any(number in ENDING for number in signals):
            next_signal = time.monotonic() + AFTER_SIGNAL_S, signal.SIGKILL
        signals.clear()
        if next_signal is not None and time.monotonic() >= next_signal[0]:
            if next_signal[1] == signal.SIGKILL:  # the end of the agents does that
                return code or 128 + signal.SIGKILL
            for number in reads.values():
                agents[number].send_signal.remote(next_signal[1])
            next_signal = time.monotonic() + AFTER_SIGNAL_S, signal.SIGKILL
    return code


def _print(ref: Any, number: int) -> int | None:
    """Print what a host has said; its exit code if it has ended, else None."""
    try:
        said = ray.get(ref)
    except ray.exceptions.RayError as error:
        say(f"host {number} is lost: {str(error).splitlines()[0]}")
        return LOST
    for descriptor, data in said:
        if descriptor == 0:
            code = int(data)
            return code if code >= 0 else 128 - code
        write(sys.stdout if descriptor == 1 else sys.stderr, data)
    return None


@contextlib.contextmanager
def _passing_signals_on(agents: Sequence[Any]) -> Iterator[list[signal.Signals]]:
    """Signals go to all agents; the list gets those that have come."""
    come: list[signal.Signals] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        come.append(signal.Signals(number))
        for agent in agents:
            agent.send_signal.remote(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
