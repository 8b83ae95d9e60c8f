"""The tuning numbers of planner, chooser and cost model; all others follow from these.

None of them changes a bit of a result. Times are in microseconds. What a message costs is measured
when an engine starts; functions take it as ``message_us``. docs/decisions.md has the measurements.
"""

from __future__ import annotations

# ---------------------------------------------------------------------- messages

#: A question to the coordinator and its answer, where no engine has measured it. Measured: 76 to
#: 193 in nine starts and twelve more questions, the median of the starts 93.
MESSAGE_US = 100.0
#: What a whole backward costs beside its tasks, in messages. Measured: a backward of one Node took
#: 535 and 537 at best.
BACKWARD_MESSAGES = 6.0
#: Do not split off work that costs less than so many messages: client, coordinator and workers
#: share the cores. Compared: predicted makespans of 1,000 random graphs with 2, 3 and 4 were 1.003,
#: 1.001 and 1.006 of those with the numbers before.
WORTH_MESSAGES = 3.0

# ---------------------------------------------------------------------- lengths of tasks

#: A task with parts that others could run becomes no longer by what joins it: where a core is taken
#: away for a while, the others go on. Compared: 50 and 100 ms make 1 % of the predicted makespan.
TASK_MAX_US = 20_000.0
#: The same of a chain that hands out what others could run: so much runs again when its worker
#: dies. Chosen.
CHAIN_MAX_US = 100_000.0
#: Tasks put together of branches of one level may be so many times as long as a chain where there
#: are two workers: their costs are alike, so that little is left over at the end. Measured: 16
#: branches of 2 ms took 20.8 ms in 16 tasks, 19.7 in 6, 19.4 in 4.
BUNDLE_CHAINS = 2.0

# ---------------------------------------------------------------------- costs of Nodes

#: What any rule costs. Measured: five rules on 8 numbers took 0.6 to 12, in the middle 4.9.
CALL_US = 5.0
#: Elementwise work and sums: bytes in and out. Measured on 1 MiB and more: powers 7,500,
#: exponentials 22,000, tanh 45,000, additions 50,000 to 94,000.
BYTES_PER_US = 20_000.0
#: Matrix products: floating-point operations on one core, of 4-byte numbers. Measured: 113,000 for
#: 256 and 512 numbers square, 39,000 for 1,024.
FLOPS_PER_US = 80_000.0

# ---------------------------------------------------------------------- learning

#: So many measurements count: the median is that of the last ones, a mean gives the newest one the
#: weight that it would have among so many. Costs are asked and learned in so many first backwards
#: of a graph, then once in so many. Measured: asked and learned in all of them, they took 0.7 of
#: 3.2 ms of the client. Simulated, see ``TRIAL_SHARE``: 5 did as well.
SAMPLES = 8
#: One measurement counts as at most so many times what was expected, and as at least that part: a
#: rule may have been interrupted (by the garbage collector, by another process). Chosen.
SURPRISE_MAX = 4.0
#: Plans are made again when so large a part of the work has moved, costs renewed at half of it:
#: new tables take 0.14 ms for 16 Functions and 1.4 ms for 8 branches of 4 layers. Chosen.
DRIFT_MAX = 0.25
#: A graph suddenly takes another time if that is so many times more or less than usual. Chosen.
FAR_OFF = 2.0

# ---------------------------------------------------------------------- choosing

#: How much better the workers must be predicted in a graph that is new: an advantage of less is not
#: worth starting processes. Chosen.
MARGIN = 1.2
#: The mode that is not used is measured again; that may cost so large a part of the time.
#: Simulated: 50 backwards with noise of 15 %, in which one of 20 is interrupted, took 1.03 to 1.06
#: of the better mode, with twice as much, too.
TRIAL_SHARE = 0.02


def worth_us(message_us: float) -> float:
    """Do not split off work that costs less."""
    return WORTH_MESSAGES * message_us


def measured_message_us(round_trip_us: float) -> float:
    """What a message counts for where a question to the coordinator takes so long: a busy start
    does not decide for a whole run."""
    return min(max(round_trip_us, MESSAGE_US / SURPRISE_MAX), MESSAGE_US * SURPRISE_MAX)
