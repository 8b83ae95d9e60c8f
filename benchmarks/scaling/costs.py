"""The costs of the simulation: one table per kind of worker, one for messages.

The figures of CPU workers and of messages are measured (``calibration``). The figures of GPU
workers are a model from data sheets; none of them was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class MessageCosts(NamedTuple):
    """Microseconds of messages between two processes."""

    #: From the end of a send until the receiver can have the message, if it is looking; and per
    #: kilobyte in addition.
    wire_us: float
    wire_us_per_kb: float
    #: The same if the receiver sleeps and must be woken.
    asleep_us: float
    #: Processor time of one send, of taking one message, and of looking whether there are any.
    send_us: float
    receive_us: float
    poll_us: float
    #: Encoding or decoding: per message, per kilobyte of tables, and per kilobyte of gradients that
    #: travel inside, which are only copied.
    codec_us: float
    codec_us_per_kb: float
    inline_us_per_kb: float

    def coded_us(self, nbytes: int, inline: int) -> float:
        """Encoding or decoding a message of ``nbytes``, ``inline`` of them gradients."""
        tables_us = self.codec_us_per_kb * (nbytes - inline) / 1024
        return self.codec_us + tables_us + self.inline_us_per_kb * inline / 1024


class WorkerCosts(NamedTuple):
    """Microseconds that a worker needs in addition to the rules."""

    #: Per task: reading its program, opening inputs and outputs, the reply.
    task_us: float
    #: Per further Node of the task, before the first one runs and while they run.
    starting_us: float
    node_us: float
    #: Per megabyte of gradients that another worker has written.
    fetch_us_per_mb: float
    #: Per megabyte that is mapped into this process for the first time.
    touch_us_per_mb: float


class ClientCosts(NamedTuple):
    """Microseconds of the client's thread for one graph; measured for each graph."""

    #: Packing one task, and each Node of it.
    task_us: float
    node_us: float
    #: The walk over the graph before its backward is planned. It is not part of the results, but
    #: the coordinator handles earlier messages in this time.
    walk_us: float

    def packing_us(self, nodes: int) -> float:
        """The time to pack a task of this many Nodes."""
        return self.task_us + self.node_us * nodes


class Costs(NamedTuple):
    """All costs of a machine."""

    messages: MessageCosts
    worker: WorkerCosts
    #: Microseconds of the coordinator's core per event, by the event's name.
    core_us: Mapping[str, float]
    #: Adding a contribution to a sum, per megabyte.
    add_us_per_mb: float


class Accelerator(NamedTuple):
    """A GPU by its data sheet."""

    name: str
    source: str
    flops_per_us: float
    bytes_per_us: float
    #: To and from another GPU.
    link_bytes_per_us: float
    #: Start of one kernel from Python.
    launch_us: float
    #: Kernels that a rule starts.
    kernels_per_node: int


H100 = Accelerator(
    "H100 SXM",
    "NVIDIA H100 data sheet: 989 TFLOPS TF32 with sparsity, hence 494 dense; 3.35 TB/s; NVLink "
    "900 GB/s, hence 450 GB/s each way",
    494e6,
    3.35e6,
    450e3,
    10.0,
    3,
)
