"""``python -m benchmarks.probes.bare_hops``: the way of a backward on which nobody does anything.

A client, a coordinator and two workers send each other as many bytes as in ``hops``, through the
same sockets, and no process does more than to receive and send. The workers run loops as long as
the Functions there. What is left is the floor of the engine on this machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from benchmarks.gil_work import spin
from benchmarks.loads import loops_for
from benchmarks.runners import OTHER_WORK_MS, other_work
from mpgrad.wire.endpoint import Endpoint
from mpgrad.wire.transport import CLIENT, TASK, WORKER_LANES

WORKERS = 2
#: Bytes: a submission, a dispatch to each worker, a reply, the end.
SUBMITTED, DISPATCHED, DONE, COMPLETE = 9_300, 4_400, 400, 500
WARM_UP = 50
_SESSION = "c1"


def relay(endpoint: Endpoint) -> None:
    """The coordinator: one frame of the session goes to all workers, their last reply back."""
    router, missing = endpoint.router(), 1 + WORKERS
    while True:
        for arrival in router.receive(None).arrivals:
            if arrival.frame == b"hello":
                missing -= arrival.lane in (TASK, CLIENT)
                if not missing:
                    router.send(CLIENT, _SESSION, b"ready")
            elif arrival.lane == CLIENT:
                missing = WORKERS
                for worker in range(WORKERS):
                    router.send(TASK, f"w{worker}", bytes(DISPATCHED))
            else:
                missing -= 1
                if not missing:
                    router.send(CLIENT, _SESSION, arrival.frame[:8] + bytes(COMPLETE))
        router.flush()


def work(endpoint: Endpoint, peer: str, loops: int) -> None:
    """A worker: answers each frame after its loops, with the nanoseconds that they took."""
    dealer = endpoint.worker(peer)
    for lane in WORKER_LANES:
        dealer.send([b"hello"], lane)
    while True:
        dealer.wait(None)
        for _ in dealer.receive():
            began = time.perf_counter_ns()
            spin(loops)
            took_ns = time.perf_counter_ns() - began
            dealer.send([took_ns.to_bytes(8, "little") + bytes(DONE)])


def measure(endpoint: Endpoint, rounds: int, after: Callable[[], object]) -> list[float]:
    """Microseconds of each round without the loops of the worker that was the last."""
    dealer = endpoint.session(_SESSION)
    dealer.send([b"hello"])
    taken = []
    while not dealer.receive():
        dealer.wait(None)
    for number in range(-WARM_UP, rounds):
        after()
        began = time.perf_counter_ns()
        dealer.send([bytes(SUBMITTED)])
        frames: list[bytes] = []
        while not frames:
            dealer.wait(None)
            frames = dealer.receive()
        took_ns = time.perf_counter_ns() - began
        if number >= 0:
            taken.append((took_ns - int.from_bytes(frames[0][:8], "little")) / 1e3)
    return taken


def run(milliseconds: float, rounds: int, after: Callable[[], object]) -> list[float]:
    """Start the other processes, and measure."""
    endpoint = Endpoint.create()
    where = json.dumps([endpoint.name, endpoint.token.hex(), loops_for(milliseconds)])
    roles = ("coordinator", *[f"w{worker}" for worker in range(WORKERS)])
    processes = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.probes.bare_hops", "--as", role, where])
        for role in roles
    ]
    try:
        return measure(endpoint, rounds, after)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="The floor of a backward in workers.")
    parser.add_argument("--milliseconds", type=float, default=1.6, help="the loop of each worker")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--as", nargs=2, dest="role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        name, token, loops = json.loads(options.role[1])
        endpoint = Endpoint(name, bytes.fromhex(token))
        if options.role[0] == "coordinator":
            relay(endpoint)
        else:
            work(endpoint, options.role[0], loops)
        return
    kinds: dict[str, Callable[[], object]] = {
        "back to back": bool,
        f"after {OTHER_WORK_MS} ms of other work": other_work,
    }
    for name, after in kinds.items():
        taken = sorted(run(options.milliseconds, options.rounds, after))
        low = taken[len(taken) // 20]
        print(f"{name:28} median {median(taken):6.0f} us, 5 % {low:6.0f}, least {taken[0]:6.0f}")


if __name__ == "__main__":
    main()
