"""DoomedHub and DoomedSpoke: transports whose process dies at its kill points.

The coordinator and the client pass their phases where messages come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.wire.schema import MESSAGES
from mpgrad.wire.transport import CLIENT, Hub, Received, Spoke
from tests.process.kill_points import Passages

#: What the coordinator passes when it receives, is about to send, and has sent a message.
_HUB_RECEIVES = {ev.GraphSubmitted: "submitted", ev.NodeTaskDone: "answered"}
_HUB_SENDS = {do.DispatchNodeTask: "dispatching", do.CompleteGraph: "completing"}
_HUB_HAS_SENT = {do.DispatchNodeTask: "dispatched", do.CompleteGraph: "completed"}
#: The same of the client.
_SPOKE_RECEIVES = {do.DispatchNodeTask: "called", do.CompleteGraph: "completed"}
_SPOKE_SENDS = {ev.GraphSubmitted: "submitting"}
_SPOKE_HAS_SENT = {ev.GraphSubmitted: "submitted"}


class DoomedHub:
    """The coordinator's end."""

    def __init__(self, hub: Hub, passages: Passages) -> None:
        self._hub, self._passages = hub, passages
        self._leaving: list[bytes] = []

    @property
    def ignored(self) -> int:
        return self._hub.ignored

    def watch(self, descriptor: int) -> None:
        self._hub.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._hub.unwatch(descriptor)

    def receive(self, timeout_ms: int | None) -> Received:
        received = self._hub.receive(timeout_ms)
        _pass_all(self._passages, _HUB_RECEIVES, [arrival.frame for arrival in received.arrivals])
        return received

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        # Tasks of the client are not counted: their number differs with the hooks there are.
        if lane != CLIENT or _kind(frame) is not do.DispatchNodeTask:
            self._leaving.append(frame)
        self._hub.send(lane, peer, frame)

    def flush(self) -> list[str]:
        leaving, self._leaving = self._leaving, []
        _pass_all(self._passages, _HUB_SENDS, leaving)
        gone = self._hub.flush()
        _pass_all(self._passages, _HUB_HAS_SENT, leaving)
        return gone

    def close(self) -> None:
        self._hub.close()


class DoomedSpoke:
    """A session's end."""

    def __init__(self, spoke: Spoke, passages: Passages) -> None:
        self._spoke, self._passages = spoke, passages

    def watch(self, descriptor: int) -> None:
        self._spoke.watch(descriptor)

    def wait(self, timeout_ms: int | None) -> list[int]:
        return self._spoke.wait(timeout_ms)

    def receive(self) -> list[bytes]:
        frames = self._spoke.receive()
        _pass_all(self._passages, _SPOKE_RECEIVES, frames)
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        _pass_all(self._passages, _SPOKE_SENDS, frames)
        self._spoke.send(frames, lane)
        _pass_all(self._passages, _SPOKE_HAS_SENT, frames)

    def close(self) -> None:
        self._spoke.close()


def _pass_all(passages: Passages, phases: dict[type[Any], str], frames: Sequence[bytes]) -> None:
    for frame in frames:
        phase = phases.get(_kind(frame))
        if phase is not None:
            passages.passes(phase)


def _kind(frame: bytes) -> Any:
    """The message's type, None for noise."""
    return MESSAGES.get(frame[0]) if frame else None
