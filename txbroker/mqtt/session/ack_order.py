"""
The order of acknowledgements to a client's publishes [MQTT-4.6.0-2, MQTT-4.6.0-3].

Theory of operation. `AckOrder` decides whether an acknowledgement may leave now. The owner of a
zone accepts a connection's publishes in the order of their arrival. So their acknowledgements are
in order by themselves. A resent publish of an earlier connection is ahead. The owner may have
accepted it before publishes that now arrive first, among them new ones. Its acknowledgement was
lost with the earlier connection. So a resent publish waits for the flow before it. Zones do not
wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.mqtt.session.inbound_publish import InboundPublish

Lane = tuple[str, int]
"""A zone and a QoS: one order."""


class AckOrder:
    """The order on one connection; `early` are the packet ids that the client may resend."""

    def __init__(self, early: Iterable[int]) -> None:
        self._early = set(early)
        self._last: dict[Lane, InboundPublish] = {}
        self._next: dict[InboundPublish, InboundPublish] = {}
        self._waiting: set[InboundPublish] = set()
        # Topics of waiting flows, each with its zone and its unanswered flows.
        self._zones: dict[str, tuple[str, set[InboundPublish]]] = {}
        self._topics: dict[InboundPublish, str] = {}  # the topic of each of these flows

    def expect(self, packet_ids: Iterable[int]) -> None:
        """Add packet ids that the client may resend."""
        self._early.update(packet_ids)

    @property
    def is_over(self) -> bool:
        """True if all further publishes are in order by themselves."""
        return not (self._early or self._next)

    def enter(self, flow: InboundPublish, topic: str, zone: str, *, is_repeat: bool) -> None:
        """
        Enter an arriving publish to this zone.

        A repeat waits for the flow before it. A new publish waits if the flow before it waits. A
        topic stays in its order until all its flows are acknowledged. The order stays even if a
        deeper zone is found for the topic meanwhile.
        """
        if topic in self._zones:
            zone, _ = self._zones[topic]
            self._register(flow, topic, zone)
        self._early.discard(flow.packet_id)
        lane = zone, flow.qos
        before = self._last.get(lane)
        self._last[lane] = flow
        if before is None or before is flow or not before.owed:
            return
        if is_repeat or before in self._waiting:
            self._next[before] = flow
            self._waiting.add(flow)
            self._register(flow, topic, zone)

    def must_wait(self, flow: InboundPublish) -> bool:
        """True if the due acknowledgement would overtake another one."""
        return flow in self._waiting

    def end(self, flow: InboundPublish) -> InboundPublish | None:
        """End an answered or discarded publish; return the flow whose turn it is now."""
        self._early.discard(flow.packet_id)
        self._forget(flow)
        after = self._next.pop(flow, None)
        if after is not None:
            self._waiting.discard(after)
        return after

    # internal

    def _register(self, flow: InboundPublish, topic: str, zone: str) -> None:
        self._forget(flow)
        self._topics[flow] = topic
        self._zones.setdefault(topic, (zone, set()))[1].add(flow)

    def _forget(self, flow: InboundPublish) -> None:
        topic = self._topics.pop(flow, None)
        if topic is not None:
            _, open_flows = self._zones[topic]
            open_flows.discard(flow)
            if not open_flows:
                del self._zones[topic]
