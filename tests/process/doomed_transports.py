"""DoomedRouter and DoomedDealer: transports whose process dies at its kill points.

The coordinator and the client pass their phases where messages come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.wire.schema import MESSAGES
from mpgrad.wire.transport import CLIENT, Dealer, Received, Router
from tests.process.kill_points import Passages

#: What the coordinator passes when it receives, is about to send, and has sent a message.
_ROUTER_RECEIVES = {ev.GraphSubmitted: "submitted", ev.NodeTaskDone: "answered"}
_ROUTER_SENDS = {do.DispatchNodeTask: "dispatching", do.CompleteGraph: "completing"}
_ROUTER_HAS_SENT = {do.DispatchNodeTask: "dispatched", do.CompleteGraph: "completed"}
#: The same of the client.
_DEALER_RECEIVES = {do.DispatchNodeTask: "called", do.CompleteGraph: "completed"}
_DEALER_SENDS = {ev.GraphSubmitted: "submitting"}
_DEALER_HAS_SENT = {ev.GraphSubmitted: "submitted"}


class DoomedRouter:
    """The coordinator's end."""

    def __init__(self, router: Router, passages: Passages) -> None:
        self._router, self._passages = router, passages
        self._leaving: list[bytes] = []

    @property
    def ignored(self) -> int:
        return self._router.ignored

    def watch(self, descriptor: int) -> None:
        self._router.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._router.unwatch(descriptor)

    def receive(self, timeout_ms: int | None) -> Received:
        received = self._router.receive(timeout_ms)
        _pass_all(
            self._passages, _ROUTER_RECEIVES, [arrival.frame for arrival in received.arrivals]
        )
        return received

    def send(self, lane: str, peer: str, frame: bytes) -> None:
        # Tasks of the client are not counted: their number differs with the hooks there are.
        if lane != CLIENT or _kind(frame) is not do.DispatchNodeTask:
            self._leaving.append(frame)
        self._router.send(lane, peer, frame)

    def flush(self) -> list[str]:
        leaving, self._leaving = self._leaving, []
        _pass_all(self._passages, _ROUTER_SENDS, leaving)
        gone = self._router.flush()
        _pass_all(self._passages, _ROUTER_HAS_SENT, leaving)
        return gone

    def close(self) -> None:
        self._router.close()


class DoomedDealer:
    """A session's end."""

    def __init__(self, dealer: Dealer, passages: Passages) -> None:
        self._dealer, self._passages = dealer, passages

    def watch(self, descriptor: int) -> None:
        self._dealer.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        self._dealer.unwatch(descriptor)

    def wait(self, timeout_ms: int | None) -> list[int]:
        return self._dealer.wait(timeout_ms)

    def receive(self) -> list[bytes]:
        frames = self._dealer.receive()
        _pass_all(self._passages, _DEALER_RECEIVES, frames)
        return frames

    def send(self, frames: Sequence[bytes], lane: str | None = None) -> None:
        _pass_all(self._passages, _DEALER_SENDS, frames)
        self._dealer.send(frames, lane)
        _pass_all(self._passages, _DEALER_HAS_SENT, frames)

    def close(self) -> None:
        self._dealer.close()


def _pass_all(passages: Passages, phases: dict[type[Any], str], frames: Sequence[bytes]) -> None:
    for frame in frames:
        phase = phases.get(_kind(frame))
        if phase is not None:
            passages.passes(phase)


def _kind(frame: bytes) -> Any:
    """The message's type, None for noise."""
    return MESSAGES.get(frame[0]) if frame else None
