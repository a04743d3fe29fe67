"""
Topic aliases of what goes to a client (MQTT 5.0, section 3.3.2.3.4).

A topic gets an alias when it comes for the second time. An alias is never given to another topic.
So packets with aliases may not be dropped, and nothing else has to be known of the client.
"""

from __future__ import annotations

from txbroker.mqtt.wire.framing import encode_length

LEAST = 4
LONGEST = 1024
"""Bytes of topics that get an alias: shorter ones cost no more, longer ones too much memory."""

SPARE = 64
"""Topics that came once and are remembered, beside as many as get an alias."""

MOST_BYTES = 16 * 1024
"""Bytes of the known topics of a connection: a stranger has thousands of connections."""

GROWTH = 5
"""Bytes by which a packet that tells an alias is longer, at most."""

TOPIC_ALIAS = 0x23


class Aliases:
    """The aliases of one connection, at most `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._last = 0
        self._known: dict[bytes, int] = {}  # 0: the topic has come once
        self._bytes = 0

    def put(self, packet: bytes) -> bytes:
        """Return a PUBLISH of level 5 and QoS 0 with an alias, or as it is."""
        at = 1
        while packet[at] > 127:
            at += 1
        topic_end = at + 3 + int.from_bytes(packet[at + 1 : at + 3])
        topic = packet[at + 3 : topic_end]
        if not LEAST <= len(topic) <= LONGEST:
            return packet
        is_known = bool(self._known.get(topic))
        alias = self._find(topic)
        if not alias:
            return packet
        start, payload = _list_at(packet, topic_end)
        properties = packet[start:payload]
        told = b"" if is_known else topic
        listed = bytes((TOPIC_ALIAS,)) + alias.to_bytes(2) + properties
        body = len(told).to_bytes(2) + told + encode_length(len(listed)) + listed + packet[payload:]
        return packet[:1] + encode_length(len(body)) + body

    def _find(self, topic: bytes) -> int:
        """Return the alias of a topic that comes now; 0: none."""
        alias = self._known.get(topic)
        if alias is None:
            if self._last == self.most:
                return 0
            is_large = self._bytes + len(topic) > MOST_BYTES
            if is_large or len(self._known) >= self.most + SPARE:
                self._known = {one: known for one, known in self._known.items() if known}
                self._bytes = sum(map(len, self._known))
            if self._bytes + len(topic) > MOST_BYTES:
                return 0
            self._bytes += len(topic)
            self._known[topic] = 0
            return 0
        if not alias and self._last < self.most:
            self._last += 1
            alias = self._known[topic] = self._last
        return alias


def _list_at(packet: bytes, at: int) -> tuple[int, int]:
    """Return start and end of the properties of the list that begins there."""
    size = shift = 0
    while True:
        byte = packet[at]
        size |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return at, at + size
