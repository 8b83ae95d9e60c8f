"""on_gpus(): the Nodes of a frozen graph that run on a GPU, and the gradients that lie there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mpgrad.scheduler.graph_spec import ON_CPU, NodeSpec


class Placeable(Protocol):
    """The part of a Node that this file needs."""

    #: The metadata of its gradients, each with a ``device``.
    input_metadata: Any


def gpus_of(nodes: Sequence[Placeable]) -> list[int]:
    """The GPUs on which gradients of ``nodes`` lie, each once."""
    devices = dict.fromkeys(meta.device for node in nodes for meta in node.input_metadata)
    return [device.index for device in devices if device.index is not None]


def on_gpus(specs: tuple[NodeSpec, ...], nodes: Sequence[Placeable]) -> tuple[NodeSpec, ...]:
    """``specs`` with ``device`` and ``device_inputs`` set.

    A Node runs on the GPU that its gradients go to, else on the one that they come from. So a copy
    between host and GPU runs at the GPU, and one between two GPUs at the receiver.
    """
    return tuple([_placed(spec, node, nodes) for spec, node in zip(specs, nodes, strict=True)])


def _placed(spec: NodeSpec, node: Placeable, nodes: Sequence[Placeable]) -> NodeSpec:
    come_from = [meta.device.index for meta in node.input_metadata]
    go_to = [
        nodes[target[0]].input_metadata[target[1]].device.index
        for target in spec.edges
        if target is not None
    ]
    gpu = next((index for index in (*go_to, *come_from) if index is not None), None)
    if gpu is None:
        return spec
    on_device = tuple(index is not None for index in come_from)
    # The client has a context on every GPU: its Nodes belong to no worker.
    device = ON_CPU if spec.on_client else gpu
    return spec._replace(device=device, device_inputs=on_device)
