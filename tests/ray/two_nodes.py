"""A Ray cluster of two nodes on this machine: prints its address, and ends with its stdin.

For each line it kills the raylet of the node that is not the head's, and prints the time before.
"""

from __future__ import annotations

import sys
import time

from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 1024**2


def main() -> None:
    """Run it."""
    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for _ in sys.stdin:
        print(time.monotonic(), flush=True)
        cluster.remove_node(second, allow_graceful=False)
    cluster.shutdown()


if __name__ == "__main__":
    main()
