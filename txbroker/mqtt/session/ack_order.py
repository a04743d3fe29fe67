"""
The order in which a client's publishes are acknowledged [MQTT-4.6.0-2, MQTT-4.6.0-3].

What a connection brings for one zone is taken in the order in which it comes, so its answers are in
order by themselves. What an earlier connection brought, and this one brings again, is ahead: it may
be taken long before a publish that came in before it now, and that is a new one, since its answer
was lost with the earlier connection. So who comes again waits for its turn. Zones do not wait for
each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.mqtt.session.inbound_publish import InboundPublish

Lane = tuple[str, int]
"""A zone and a QoS: one order."""


class AckOrder:
    """The turns on one connection; `early` are the packet ids that it may bring again."""

    def __init__(self, early: Iterable[int]) -> None:
        self._early = set(early)
        self._last: dict[Lane, InboundPublish] = {}
        self._next: dict[InboundPublish, InboundPublish] = {}
        self._waiting: set[InboundPublish] = set()
        # Of topics of which something has waited: the zone, and what is not answered.
        self._zones: dict[str, tuple[str, set[InboundPublish]]] = {}
        self._topics: dict[InboundPublish, str] = {}  # of these

    def expect(self, packet_ids: Iterable[int]) -> None:
        """It may bring these again, too."""
        self._early.update(packet_ids)

    @property
    def is_over(self) -> bool:
        """Whether whatever comes from now on has its turn by itself."""
        return not (self._early or self._next)

    def enter(self, flow: InboundPublish, topic: str, zone: str, *, is_repeat: bool) -> None:
        """
        A publish came in, for this zone; a repeat waits for what came before it, and a new one for
        what waits itself, maybe for one whose zone turns out to be another one. The topic stays in
        its order when its zone is found to be a deeper one, until all of it is answered.
        """
        if topic in self._zones:
            zone, _ = self._zones[topic]
            self._note(flow, topic, zone)
        self._early.discard(flow.packet_id)
        lane = zone, flow.qos
        before = self._last.get(lane)
        self._last[lane] = flow
        if before is None or before is flow or not before.owed:
            return
        if is_repeat or before in self._waiting:
            self._next[before] = flow
            self._waiting.add(flow)
            self._note(flow, topic, zone)

    def has_to_wait(self, flow: InboundPublish) -> bool:
        """Whether the answer that is due would overtake another one."""
        return flow in self._waiting

    def end(self, flow: InboundPublish) -> InboundPublish | None:
        """The publish is answered, or never will be; the one whose turn it is now."""
        self._early.discard(flow.packet_id)
        self._forget(flow)
        after = self._next.pop(flow, None)
        if after is not None:
            self._waiting.discard(after)
        return after

    # internal

    def _note(self, flow: InboundPublish, topic: str, zone: str) -> None:
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
