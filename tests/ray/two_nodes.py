"""A Ray cluster of two nodes on this machine: prints its address, and ends with its stdin."""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 1024**2


def main() -> None:
    """Run it."""
    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
