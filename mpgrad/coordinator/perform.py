"""send_instruction(): which lane each of the core's instructions takes."""

from __future__ import annotations

from mpgrad.scheduler import instructions as do
from mpgrad.wire.codec import encode
from mpgrad.wire.transport import CLIENT, CONTROL, TASK, URGENT, Router


def send_instruction(router: Router, instruction: do.ToWorker | do.ToClient) -> None:
    """Put an instruction that is addressed to a peer into its lane."""
    router.send(_lane(instruction), instruction.peer, encode(instruction))


def _lane(instruction: do.ToWorker | do.ToClient) -> str:
    if is_session(instruction.peer):
        return CLIENT
    if isinstance(instruction, do.DispatchNodeTask):
        return URGENT if instruction.depth > 0 else TASK
    return CONTROL


def is_session(peer: str) -> bool:
    """Sessions are called "c<pid>.<number>", workers "w<slot>.<incarnation>"."""
    return peer.startswith("c")
