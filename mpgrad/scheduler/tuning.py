"""The tuning numbers of planner, chooser and cost model; all others follow from these.

None of them changes a bit of a result. Times are in microseconds. An engine measures the cost of a
message when it starts; functions take it as ``message_us``. docs/decisions/executor.md has
the measurement behind each number.
"""

from __future__ import annotations

# ---------------------------------------------------------------------- messages

#: The cost of a message (a round trip to the coordinator) if no engine has measured it.
MESSAGE_US = 100.0
#: The cost of a whole backward without its tasks, in messages.
BACKWARD_MESSAGES = 6.0
#: Do not split off work that costs less than this many messages: client, coordinator and workers
#: share the cores.
WORTH_MESSAGES = 3.0

#: What a Node costs beside its rule: the client packs it, and again a worker unpacks and runs it.
NODE_US = 7.0

# ---------------------------------------------------------------------- lengths of tasks

#: The longest time that a task may reach by fusion and bundling. If the system takes a core away
#: for a while, other workers can run the other tasks.
TASK_MAX_US = 20_000.0

# ---------------------------------------------------------------------- costs of Nodes

#: The least cost of a rule.
CALL_US = 5.0
#: The speed of elementwise work and sums: bytes read and written.
BYTES_PER_US = 20_000.0
#: The speed of matrix products: floating-point operations on 4-byte numbers, on one core.
FLOPS_PER_US = 80_000.0

# ---------------------------------------------------------------------- learning

#: The number of measurements that count: a mean gives the newest one the weight that it has among
#: this many. Costs are measured and learned in this many first backwards of a graph, then once in
#: this many.
SAMPLES = 8
#: A measurement counts as at most this many times the expected time, and as at least that fraction
#: of it: a rule may have been interrupted (by the garbage collector, by another process).
SURPRISE_MAX = 4.0
#: A graph is planned again when this part of the work has moved; costs are renewed at half of it.
DRIFT_MAX = 0.25
#: The time of a graph is a surprise if it is this many times longer or shorter than usual.
FAR_OFF = 2.0

# ---------------------------------------------------------------------- choosing

#: A new graph goes to workers only if they are predicted to be this many times faster: a smaller
#: advantage is not worth starting processes.
MARGIN = 1.2
#: Workers start for a graph or map only after such ones have lost so much by running in this
#: process: they may not come again, and the start takes time from them.
START_US = 60_000.0
#: What is assumed to be lost of the time here, before anything is predicted.
LOST_SHARE = 0.5
#: The part of the time that may be spent on measuring the other mode again.
TRIAL_SHARE = 0.02


def worth_us(message_us: float) -> float:
    """The least cost of work that is split off."""
    return WORTH_MESSAGES * message_us


def measured_message_us(round_trip_us: float) -> float:
    """The cost of a message, given a measured round trip to the coordinator.

    It is bounded, so that a start on a busy machine does not decide for a whole run.
    """
    return min(max(round_trip_us, MESSAGE_US / SURPRISE_MAX), MESSAGE_US * SURPRISE_MAX)
