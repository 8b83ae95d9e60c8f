"""send_instruction(): the lane of each of the core's instructions."""

from __future__ import annotations

from mpgrad.scheduler import instructions as do
from mpgrad.wire.codec import encode
from mpgrad.wire.transport import CLIENT, CONTROL, TASK, URGENT, Router


def send_instruction(router: Router, instruction: do.ToWorker | do.ToClient) -> None:
    """Send an instruction to its peer on the right lane."""
    router.send(_lane(instruction), instruction.peer, encode(instruction))


def _lane(instruction: do.ToWorker | do.ToClient) -> str:
    if is_session(instruction.peer):
        return CLIENT
    if isinstance(instruction, do.DispatchNodeTask):
        return URGENT if instruction.depth > 0 else TASK
    return CONTROL


def is_session(peer: str) -> bool:
    """Whether ``peer`` is a session ("c<pid>.<number>"), not a worker ("w<slot>.<incarnation>")."""
    return peer.startswith("c")
