"""A Ray cluster of two nodes (or its argument) on this machine: prints its address, and ends with
its stdin.

For each line ("remove" or "add") it kills the raylet of the node that came last, or starts a node;
"remove 0" kills that of the node that came first. The head stays. Then it prints the time before.
"""

from __future__ import annotations

import sys
import time

import psutil
from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 1024**2
END_S = 30.0


def main() -> None:
    """Run it."""
    node = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    others = [cluster.add_node(**node) for _ in range(int(sys.argv[1]) - 1 if sys.argv[1:] else 1)]
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        before = time.monotonic()
        what, _, which = line.strip().partition(" ")
        if what == "add":
            others.append(cluster.add_node(**node))
        else:
            lost = others.pop(int(which or -1))
            raylet = psutil.Process(lost.all_processes["raylet"][0].process.pid)
            workers = raylet.children(recursive=True)
            cluster.remove_node(lost, allow_graceful=False)
            psutil.wait_procs(workers, END_S)  # until then an actor may still answer
        print(before, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
