"""The tuning numbers of planner, chooser and cost model; all others follow from these.

None of them changes a bit of a result. Times are in microseconds. What a message costs is measured
when an engine starts; functions take it as ``message_us``. Figures behind the numbers:
docs/decisions.md.
"""

from __future__ import annotations

# ---------------------------------------------------------------------- messages

#: A question to the coordinator and its answer, where no engine has measured it: the median of nine
#: starts on two cores.
MESSAGE_US = 100.0
#: What a whole backward costs beside its tasks, in messages: a backward of one Node, over that.
BACKWARD_MESSAGES = 6.0
#: Do not split off work that costs less than so many messages: client, coordinator and workers
#: share the cores, and 1,000 random graphs and the benchmarks were best with it.
WORTH_MESSAGES = 3.0

# ---------------------------------------------------------------------- lengths of tasks

#: No task becomes longer by what is added to it: so much runs again when its worker dies.
TASK_MAX_US = 100_000.0
#: Tasks put together of branches of one level may be so many times as long as a chain where there
#: are two workers: their costs are alike, so that little is left over at the end (16 branches of
#: 2 ms in 16, 6, 4 and 2 tasks).
BUNDLE_CHAINS = 2.0

# ---------------------------------------------------------------------- costs of Nodes

#: What any rule costs: the median of the elementwise rules on 8 numbers.
CALL_US = 3.0
#: Elementwise work, and sums of gradients: bytes through memory, from additions of 1 to 64 MiB.
BYTES_PER_US = 4000.0
#: Matrix products: floating-point operations on one core, of 4-byte numbers; 512 x 512.
FLOPS_PER_US = 80_000.0

# ---------------------------------------------------------------------- learning

#: So many measurements count; of medians the last ones, of means with the weight below.
RECENT = 5
#: One measurement counts as at most so many times what was expected, and as at least that part:
#: pauses of the garbage collector are 10 to 1,000 times as long as short rules.
SURPRISE_MAX = 4.0
#: Costs are renewed, and plans made again, when so large a part of the work has moved: medians of
#: one graph vary by up to 0.15 from minute to minute.
DRIFT_MAX = 0.25
#: A graph suddenly takes another time if that is so many times more or less than usual.
FAR_OFF = 2.0
#: Costs are asked and learned in so many first backwards of a graph, then once in so many.
YOUNG_USES = 8

# ---------------------------------------------------------------------- choosing

#: How much better a mode must be predicted that was never measured: predictions were off by up to
#: 0.2 on the six graphs of ``scripts/bench auto``.
MARGIN = 1.2
#: The mode that is not used is measured again; that may cost so large a part of the time.
TRIAL_SHARE = 0.02


def worth_us(message_us: float) -> float:
    """Do not split off work that costs less."""
    return WORTH_MESSAGES * message_us


def measured_message_us(round_trip_us: float) -> float:
    """What a message counts for where a question to the coordinator takes so long: a busy start
    does not decide for a whole run."""
    return min(max(round_trip_us, MESSAGE_US / SURPRISE_MAX), MESSAGE_US * SURPRISE_MAX)
