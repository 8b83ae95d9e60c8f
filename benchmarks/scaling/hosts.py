"""``scripts/simulate hosts``: data parallel and pipelines on many hosts, on paper.

Nothing is measured here. A message takes HOP_MS and its bytes at RATE; a host's link carries one
bucket after another; the backward makes its gradients evenly. All hosts are equal, and
nobody else uses the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: Milliseconds of a message without bytes, and bytes that pass in one.
HOP_MS, RATE = 0.1, 1.2e6
#: The parameters of ResNet-50 in float32, the milliseconds of its backward, and PyTorch's buckets.
BYTES, BACKWARD_MS = 102e6, 880.0
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
HOSTS = (64, 128, 256, 512, 1024)
STAGES = (4, 8, 16, 32, 64)
#: Parts of a batch for each stage; milliseconds of a part's forward, of the gradient that the stage
#: before waits for, and of the weights' gradients; bytes that pass from stage to stage.
PARTS, PART_MS, PASSED = 4, 10.0, 2**20


def halving_ms(size: float, hosts: int) -> float:
    """Of recursive halving and doubling (Thakur et al., 2005)."""
    return 2 * math.log2(hosts) * HOP_MS + 2 * size * (hosts - 1) / hosts / RATE


def ring_ms(size: float, hosts: int) -> float:
    """Of a ring (Patarasuk and Yuan, 2009)."""
    return 2 * (hosts - 1) * HOP_MS + 2 * size * (hosts - 1) / hosts / RATE


def data_parallel_share(hosts: int, all_reduce_ms: Callable[[float, int], float]) -> float:
    """The time of a backward alone, of that with the averaging beside it."""
    made, free_ms, size = 0.0, 0.0, float(FIRST_BUCKET)
    while made < BYTES:
        size = min(size, BYTES - made)
        made += size
        free_ms = max(free_ms, BACKWARD_MS * made / BYTES) + all_reduce_ms(size, hosts)
        size = float(BUCKET)
    return BACKWARD_MS / free_ms


def pipeline_share(stages: int, delay_ms: float, *, splits: bool) -> float:
    """The share of the time in which a stage works.

    Each stage takes the gradient of the oldest part first, then a forward, of which it has as many
    under way as stages follow (1F1B), and weight gradients where nothing else is there.

    Args:
        stages: how many hosts.
        delay_ms: from the end of a stage's work to its arrival at the next one.
        splits: weight gradients wait for a gap; else they belong to the backward of their part.
    """
    parts = PARTS * stages
    # When the input of each part's forward and backward is there, by stage.
    forward = [[0.0 if stage == 0 else math.inf] * parts for stage in range(stages)]
    backward = [[math.inf] * parts for _ in range(stages)]
    done = [[0, 0, 0] for _ in range(stages)]  # forwards, backwards, weight gradients
    free_ms = [0.0] * stages

    def choice(stage: int) -> tuple[float, int]:
        """When the stage can begin with what."""
        forwards, backwards, weights = done[stage]
        able = []
        if backwards < parts:
            able.append((max(free_ms[stage], backward[stage][backwards]), 0))
        if forwards < parts and forwards - backwards < stages - stage:
            able.append((max(free_ms[stage], forward[stage][forwards]), 1))
        if weights < backwards:
            able.append((free_ms[stage], 2))
        return min(able, default=(math.inf, 3))

    while any(counts[2] < parts for counts in done):
        stage = min(range(stages), key=choice)
        begin_ms, what = choice(stage)
        forwards, backwards, _ = done[stage]
        end_ms = begin_ms + PART_MS
        if what == 1:
            done[stage][0] += 1
            following = backward[stage] if stage == stages - 1 else forward[stage + 1]
            following[forwards] = end_ms + (delay_ms if stage < stages - 1 else 0.0)
        elif what == 0:
            done[stage][1] += 1
            if not splits:
                end_ms += PART_MS
                done[stage][2] += 1
            if stage > 0:
                backward[stage - 1][backwards] = end_ms + delay_ms
        else:
            done[stage][2] += 1
        free_ms[stage] = end_ms
    return 3 * PART_MS * parts / max(free_ms)


def main() -> None:
    """Print both tables."""
    print("| hosts | halving and doubling | ring |\n|---|---|---|")
    for hosts in HOSTS:
        shares = [data_parallel_share(hosts, way) for way in (halving_ms, ring_ms)]
        print(f"| {hosts:,} | {shares[0]:.0%} | {shares[1]:.0%} |")
    delay_ms = HOP_MS + PASSED / RATE
    print(
        "\n| stages | weight gradients in the gaps | 1F1B | the first, if nothing had to travel |"
    )
    print("|---|---|---|---|")
    for stages in STAGES:
        busy = [pipeline_share(stages, delay_ms, splits=splits) for splits in (True, False)]
        busy.append(pipeline_share(stages, 0.0, splits=True))
        print(f"| {stages} | {busy[0]:.0%} | {busy[1]:.0%} | {busy[2]:.0%} |")


if __name__ == "__main__":
    main()
