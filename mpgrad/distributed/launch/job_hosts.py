"""``mpgrad run --rdzv-endpoint``: the hosts of a job meet there, and share its ranks.

The host that has the endpoint's address is host 0. Which ranks a host runs, its number and the port
of rank 0 come from there. No thread is needed: the launcher asks for news again and again.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from mpgrad.distributed.carrier.messages import Join
from mpgrad.distributed.carrier.zeromq_carrier import ZmqHostCarrier
from mpgrad.distributed.group_key import group_key
from mpgrad.distributed.hosts_of_job import (
    FIRST,
    OTHER,
    FirstHost,
    JobTerms,
    OtherHost,
    RunRanks,
)
from mpgrad.distributed.launch.group_setup import reserved_port
from mpgrad.distributed.rendezvous import (
    REFUSAL_MS_MAX,
    resolved,
    tcp_address,
    versions_of_this_process,
    way_to,
)
from mpgrad.distributed.states.rank_placement import ANY

#: Why this host cannot listen at the endpoint: the address is another one's, or somebody of this
#: host listens there.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EADDRINUSE)


class MeetingPoint(NamedTuple):
    """Where the hosts meet, and how."""

    host: str
    port: int
    #: Of the job: hosts with another one are refused.
    id: str
    #: The number that this host asks for, ANY if it takes what it gets.
    node_rank: int
    terms: JobTerms


class JobHosts:
    """This host's part in a job.

    Args:
        side: of host 0, or of another one.
        address: of rank 0.
    """

    def __init__(self, side: FirstHost | OtherHost, address: str) -> None:
        self._side = side
        #: Where rank 0 listens, for MASTER_ADDR.
        self.address = address

    @property
    def is_needed(self) -> bool:
        """Whether this launcher has to go on though no rank runs here."""
        return self._side.is_needed

    def look(self) -> None:
        """Take what has come, and what follows from the time.

        Raises:
            HostLost: host 0 is lost.
            RendezvousTimeout: not all hosts came.
            RuntimeError: host 0 has refused this one.
        """
        for event in self._side.carrier.receive(0):
            self._side.take(event)
        self._side.look(time.monotonic())

    def end(self, rank: int) -> None:
        """A rank has ended well here."""
        self._side.end([rank])


@contextmanager
def job_hosts(endpoint: MeetingPoint, run: RunRanks) -> Iterator[JobHosts]:
    """This host among the others, until it leaves them.

    Args:
        endpoint: the same on all hosts.
        run: is called with what this host has to run.

    Raises:
        OSError: this host is to be host 0, and cannot listen there.
        ValueError: the endpoint has no address, or there is no key.
    """
    address = resolved(endpoint.host, endpoint.port)
    key, incarnation = group_key(encrypt=True), secrets.token_hex(8)

    def listen(kind: str, host: str, port: int) -> ZmqHostCarrier:
        return ZmqHostCarrier(key, f"{kind}.{incarnation}", host, port, encrypt=True)

    carrier = None
    if endpoint.node_rank in (ANY, 0):
        try:
            carrier = listen(FIRST, address, endpoint.port)
        except OSError as error:
            if endpoint.node_rank == 0 or error.errno not in _NOT_HERE:
                raise
    is_first = carrier is not None
    if carrier is None:
        carrier = listen(OTHER, way_to(address, endpoint.port), 0)
    with ExitStack() as stack:
        stack.callback(carrier.close, REFUSAL_MS_MAX)
        terms = endpoint.terms
        join = Join(
            0 if is_first else endpoint.node_rank,
            terms.hosts_max * terms.per_host,
            incarnation,
            carrier.address,
            _versions(endpoint),
        )
        side: FirstHost | OtherHost
        if is_first:
            port = stack.enter_context(reserved_port(address))
            side = FirstHost(carrier, join, terms, port, run)
        else:
            at = tcp_address(address, endpoint.port)
            side = OtherHost(carrier, join, terms, at, run)
        yield JobHosts(side, endpoint.host)


def _versions(endpoint: MeetingPoint) -> tuple[tuple[str, str], ...]:
    terms = endpoint.terms
    nodes = str(terms.hosts_max)
    if terms.hosts_min < terms.hosts_max:
        nodes = f"{terms.hosts_min}:{nodes}"
    options = {
        "--rdzv-id": endpoint.id,
        "--nnodes": nodes,
        "--nproc-per-node": str(terms.per_host),
    }
    return (*options.items(), *versions_of_this_process())
