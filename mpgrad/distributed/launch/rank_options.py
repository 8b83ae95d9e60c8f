"""The arguments of ``mpgrad run`` for programs of several processes, named as torchrun's."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mpgrad.base import config, machine
from mpgrad.distributed.launch.group_setup import Others

if TYPE_CHECKING:
    from mpgrad.distributed.launch.job_hosts import MeetingPoint
    from mpgrad.distributed.launch.ranks import Ranks

T = TypeVar("T")

#: The options that ask for ranks, beside --nnodes, with what they are if they are not given.
_OF_RANKS = {
    "node_rank": None,
    "master_addr": None,
    "master_port": 0,
    "max_restarts": 0,
    "rdzv_endpoint": None,
    "standalone": False,
    "address": None,
}

#: torchrun's port of an endpoint.
RENDEZVOUS_PORT = 29400

#: What ``--rdzv-backend`` may be: hosts get their numbers at the endpoint, or by --node-rank.
BACKENDS = ("c10d", "static")

#: What ``--rdzv-conf`` may hold, and the field of JobTerms that it is.
_CONF = {
    "join_timeout": "join_timeout_s",
    "timeout": "join_timeout_s",
    "last_call_timeout": "last_call_s",
}


class Nodes(NamedTuple):
    """How many hosts: at least, and at most."""

    least: int
    most: int


def add_rank_options(run: argparse.ArgumentParser) -> None:
    """Add them to ``mpgrad run``."""
    ranks = run.add_argument_group("several processes, as torchrun starts them")
    add = ranks.add_argument
    add(
        "--nproc-per-node",
        "--nproc_per_node",
        type=argument(_parse_processes),
        metavar="N|auto|cpu|gpu",
        help="run the script in N processes of this host, or one for each CPU or GPU (auto: GPU if "
        "there is one): RANK, WORLD_SIZE and LOCAL_RANK tell them apart, and their engines run "
        "where they choose (MPGRAD_ENGINE); default: 1, with --nnodes and the options below",
    )
    add(
        "--nnodes",
        type=argument(_parse_nodes),
        default=Nodes(1, 1),
        metavar="N|MIN:MAX",
        help="hosts that do so (default: 1); of MIN:MAX the job begins with at least MIN, and has "
        "the ranks of MAX, which the hosts share",
    )
    add("--node-rank", "--node_rank", type=int, metavar="K", help="0 to N-1 (default: 0)")
    add("--master-addr", "--master_addr", metavar="HOST", help="host 0, as the others reach it")
    add(
        "--master-port",
        "--master_port",
        type=int,
        default=0,
        metavar="PORT",
        help="where rank 0 listens (default, on one host: one that is free)",
    )
    add(
        "--max-restarts",
        "--max_restarts",
        type=argument(_parse_restarts),
        default=0,
        metavar="N",
        help="start ranks of this host that die again, N times in all, and those of a lost host on "
        "others (default: 0); see mpgrad.distributed.elastic",
    )
    _add_rendezvous(ranks)
    add(
        "--address",
        metavar="auto|HOST:PORT",
        help="a Ray cluster: it chooses the --nnodes hosts, where mpgrad[ray] has to be installed; "
        "with --node-rank K only those from K on",
    )


def _add_rendezvous(ranks: argparse._ArgumentGroup) -> None:
    add = ranks.add_argument
    add(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        type=argument(_parse_endpoint),
        metavar="HOST[:PORT]",
        help="where the hosts meet, instead of --node-rank and --master-addr: the host with this "
        "address is host 0, the others are counted as they come, or as --node-rank says (default "
        f"port: {RENDEZVOUS_PORT})",
    )
    add(
        "--rdzv-id",
        "--rdzv_id",
        default="none",
        metavar="ID",
        help="of the job: hosts with another one are refused",
    )
    add(
        "--rdzv-backend",
        "--rdzv_backend",
        choices=BACKENDS,
        default=BACKENDS[0],
        help="c10d: the hosts meet at the endpoint (default); static: it is --master-addr and "
        "--master-port in one",
    )
    add(
        "--rdzv-conf",
        "--rdzv_conf",
        type=argument(_parse_conf),
        default={},
        metavar="KEY=SECONDS,...",
        help="join_timeout: until there are enough hosts (default: 600); last_call_timeout: for "
        "more of them, once there are MIN (default: 30)",
    )
    add(
        "--standalone",
        action="store_true",
        help="one host, whatever --rdzv-endpoint and the like say",
    )


def asks_for_ranks(options: argparse.Namespace) -> bool:
    """Whether the script runs as ranks, also where ``--nproc-per-node`` is left out."""
    return options.nnodes.most > 1 or any(
        getattr(options, name) != default for name, default in _OF_RANKS.items()
    )


def ranks_of(options: argparse.Namespace, per_node: int) -> Ranks:
    """The ranks that the arguments ask for.

    Raises:
        ValueError: they do not fit each other.
    """
    from mpgrad.distributed.launch.ranks import Ranks

    least, most = options.nnodes
    host, port = options.master_addr, options.master_port
    meets = options.rdzv_endpoint is not None and not options.standalone
    if options.standalone and most > 1:
        raise ValueError("--standalone is for one host: leave out --nnodes")
    if meets and (host or port):
        raise ValueError("--rdzv-endpoint leaves no choice of --master-addr and --master-port")
    if not 0 <= (options.node_rank or 0) < most:
        raise ValueError(f"--node-rank has to be 0 to {most - 1}")
    if meets:
        host, port = options.rdzv_endpoint
    if most > 1 and not (host and port):
        raise ValueError(
            "--nnodes needs --rdzv-endpoint, or --master-addr and --master-port, equal on all hosts"
        )
    if most > 1:
        _shared_key_file("--nnodes")
    is_dynamic = meets and most > 1 and options.rdzv_backend != "static"
    endpoint = _endpoint(options, per_node) if is_dynamic else None
    if least < most and endpoint is None:
        raise ValueError("--nnodes MIN:MAX needs --rdzv-endpoint, where the hosts meet")
    return Ranks(
        per_node,
        most,
        options.node_rank or 0,
        host or "127.0.0.1",
        port,
        options.max_restarts,
        options.rdzv_id,
        endpoint,
    )


def others_of(options: argparse.Namespace) -> Others | None:
    """With ``--address``: the hosts before those that Ray chooses; None if there are none.

    Raises:
        ValueError: the arguments do not fit each other.
        OSError: the file with the group's key cannot be read.
    """
    first, host, port = options.node_rank or 0, options.master_addr, options.master_port
    if options.rdzv_endpoint is not None:
        raise ValueError("--address leaves no choice of --rdzv-endpoint: Ray says who is there")
    if not 0 <= first < options.nnodes.most:
        raise ValueError(f"--node-rank has to be 0 to {options.nnodes.most - 1}")
    if first == 0:
        if host or port:
            raise ValueError(
                "--address leaves no choice of --master-addr and --master-port, unless --node-rank "
                "says that rank 0 is on none of Ray's hosts"
            )
        return None
    if not (host and port):
        raise ValueError("--address with --node-rank needs --master-addr and --master-port")
    with open(_shared_key_file("--node-rank"), "rb") as file:
        return Others(first, host, port, file.read())


def _shared_key_file(option: str) -> str:
    path = config.group_key_file()
    if path is None:
        raise ValueError(
            f"{option} needs MPGRAD_GROUP_KEY_FILE: a file of random bytes, equal on all hosts"
        )
    return path


def _endpoint(options: argparse.Namespace, per_node: int) -> MeetingPoint:
    # Imported here: only this needs ZeroMQ.
    from mpgrad.distributed.hosts_of_job import JobTerms
    from mpgrad.distributed.launch.job_hosts import MeetingPoint
    from mpgrad.distributed.states.rank_placement import ANY

    host, port = options.rdzv_endpoint
    least, most = options.nnodes
    terms = JobTerms(least, most, per_node, options.max_restarts > 0)
    node_rank = ANY if options.node_rank is None else options.node_rank
    return MeetingPoint(host, port, options.rdzv_id, node_rank, terms._replace(**options.rdzv_conf))


def processes_of(wanted: int | str) -> int:
    """How many processes ``--nproc-per-node`` asks for on this host.

    Raises:
        ValueError: there is no GPU.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted != "cpu":
        from mpgrad.arrays.cuda import cuda_driver

        gpus = cuda_driver.device_count()
        if gpus:
            return gpus
        if wanted == "gpu":
            raise ValueError("--nproc-per-node gpu: this host has no GPU that CuPy can use")
    return machine.available_cpus()


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """``parse`` for argparse, which drops a ValueError's text but shows an ArgumentTypeError's."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return convert


def _parse_processes(text: str) -> int | str:
    if text in ("auto", "cpu", "gpu"):
        return text
    try:
        return config.parse_worker_count(text)
    except ValueError as error:
        raise ValueError(f"{error}, or auto, cpu, gpu") from None


def _parse_nodes(text: str) -> Nodes:
    least, _, most = text.partition(":")
    nodes = Nodes(config.parse_worker_count(least), config.parse_worker_count(most or least))
    if nodes.least > nodes.most:
        raise ValueError("expected MIN:MAX, and MAX is less than MIN")
    return nodes


def _parse_restarts(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("expected a whole number")
    return int(text)


def _parse_endpoint(text: str) -> tuple[str, int]:
    url = urlsplit(f"//{text}")
    if not url.hostname or url.netloc != text:
        raise ValueError("expected HOST or HOST:PORT")
    return url.hostname, RENDEZVOUS_PORT if url.port is None else url.port


def _parse_conf(text: str) -> dict[str, float]:
    found = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key.strip() not in _CONF:
            raise ValueError(f"{key.strip()!r} is none of {', '.join(_CONF)}")
        found[_CONF[key.strip()]] = float(value)
    return found
