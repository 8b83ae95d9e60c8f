"""wiring_of(): the inputs and outputs around the rule of one Node, for workers and the client."""

from __future__ import annotations

from mpgrad.autograd.freezing.frozen_graph import FrozenGraph
from mpgrad.backends.column_parts import shape_of
from mpgrad.graph.node import InputMetadata
from mpgrad.scheduler.plan_tables import InnerTarget, Member
from mpgrad.wire.programs import Wiring


def wiring_of(frozen: FrozenGraph, member: Member) -> Wiring:
    """The sources and targets of the gradients of ``member``."""
    node, spec = frozen.nodes[member.node], frozen.spec.nodes[member.node]
    if member.piece_of is not None:
        metadata = (node.input_metadata[member.piece_of],)
        return Wiring(f"Sum({node.label})", metadata, (), (), member.captures)
    return Wiring(
        spec.name,
        node.input_metadata,
        _outputs(frozen, member),
        tuple(
            [
                (route.member, route.input_nr) if isinstance(route, InnerTarget) else route
                for route in member.routes
            ]
        ),
        member.captures,
        node.takes_undefined,
        node.passes_on,
        member.publishes,
        member.parts,
    )


def _outputs(frozen: FrozenGraph, member: Member) -> tuple[InputMetadata | None, ...]:
    """The metadata that the consumer of each output expects, None if its gradient is unused."""
    spec = frozen.spec.nodes[member.node]
    outputs = [
        None if target is None else frozen.nodes[target[0]].input_metadata[target[1]]
        for target in spec.edges
    ]
    if member.parts is not None and outputs[0] is not None:
        shape = shape_of(outputs[0].shape, member.parts, len(spec.part_nbytes))
        outputs[0] = outputs[0]._replace(shape=shape)
    return tuple(outputs)
