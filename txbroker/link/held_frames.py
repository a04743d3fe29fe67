"""
The frames of a link behind a silence, and how long they waited in the sockets.

A node that stood still reads what came meanwhile. No clock of the node has measured that wait, and
messages would come later than their expiry interval. Heartbeats measure the wait. Each tells its
sender's time, and the quickest of the last ones is the measure. No clock is compared with another.

A link flows, or holds its frames. A silence begins a hold. Each heartbeat lets the held frames go
on: they waited at least as long as the heartbeat behind them. The first heartbeat that waited for
no time to speak of ends the hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import attrs

from txbroker.core import Run
from txbroker.mqtt.wire.message_expiry import aged
from txbroker.mqtt.wire.packets import Publish
from txbroker.v1.link_pb2 import LinkFrame

Frame = LinkFrame | Publish | Run

MEASURES = 30
"""Heartbeats of which the quickest is the measure: a clock that was halted counts no longer."""

FRESH = 1.0
"""Seconds of waiting that count as none: so far apart are heartbeats."""

LONGEST = 2.0
"""Seconds after which a hold ends: what came since then found a node that reads."""


class HeldFrames:
    """The held frames of one end of a link; `since`: when the hold began, None if frames flow."""

    def __init__(self) -> None:
        self._measures: deque[float] = deque(maxlen=MEASURES)
        self._held: list[Frame] = []
        self.since: float | None = None

    def hold(self, now: float) -> None:
        """Hold the frames that come next: the link was silent."""
        if self.since is None:
            self.since = now

    def add(self, frame: Frame) -> None:
        """Hold a frame."""
        self._held.append(frame)

    def on_heartbeat(self, at: int, now: float) -> Iterator[Frame]:
        """
        Yield the held frames with what is left of the messages' intervals.

        `at`: the sender's time in milliseconds; 0: the sender is of an earlier version.
        """
        waited = 0.0
        if at:
            self._measures.append(now - at / 1000)
            waited = self._measures[-1] - min(self._measures)
        if self.since is None:
            return
        is_over = now - self.since > LONGEST
        held, self._held = self._held, []
        if is_over or waited < FRESH:
            self.since = None
        for frame in held:
            yield from (frame,) if is_over else _aged_frames(frame, waited)


def _aged_frames(frame: Frame, seconds: float) -> Iterable[Frame]:
    """Take the seconds off the intervals of a frame's messages; a run that has any is split."""
    if isinstance(frame, LinkFrame):
        return (frame,)
    if isinstance(frame, Publish):
        return (_aged(frame, seconds),)
    if not (frame.has_properties and frame.expires):
        return (frame,)
    messages = map(frame.message, range(frame.count))
    return [
        _aged(Publish(m.topic, m.payload, m.qos, m.retain, properties=m.properties), seconds)
        for m in messages
    ]


def _aged(packet: Publish, seconds: float) -> Publish:
    return attrs.evolve(packet, properties=aged(packet.properties, seconds))
