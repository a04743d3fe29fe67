"""What a client said, on its way from one node to the next."""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar

import attrs

from txbroker.mqtt.wire.encoder import encode_publish, publish_head

WillId = tuple[str, int, int]
"""
A will: whose it is (client and node, see `directory.wills`), the life of that node, and the number
of the connection in it.
"""


def owner_of_will(node: str, client_id: str) -> str:
    """The first part of the id: no node's name, however long, and no client's."""
    return blake2b(f"{node}\0{client_id}".encode(), digest_size=16).hexdigest()


OVERHEAD = 64
"""Bytes that a message counts for beside its payload and topic."""


@attrs.define(slots=True, eq=False)
class Message:
    """
    One application message.

    `qos` and `retain` are the publisher's. For the record only: `client_id` is the publisher's,
    `edge` the node that it came in on, "" for this one. The `will` is the id of a will, which may
    be sent more than once and is to be taken once. `packet` is the `link_packet`, for those who
    have it. The encoded forms are made once and shared by all who send the message on, so a message
    is never changed after it was built.
    """

    count: ClassVar[int] = 1

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    client_id: str = ""
    will: WillId | None = None
    edge: str = ""
    _link_packet: bytes | None = attrs.field(default=None, repr=False, alias="packet")
    _qos0_packet: bytes | None = attrs.field(default=None, init=False, repr=False)
    _qos1_head: bytes | None = attrs.field(default=None, init=False, repr=False)

    @property
    def link_packet(self) -> bytes:
        """The raw PUBLISH for a link: RETAIN is the publisher's, packet id and DUP mean nothing."""
        packet = self._link_packet
        if packet is None:
            packet_id = 1 if self.qos else None
            packet = encode_publish(
                self.topic, self.payload, self.qos, self.retain, False, packet_id
            )
            self._link_packet = packet
        return packet

    @property
    def qos0_packet(self) -> bytes:
        """The PUBLISH that a QoS 0 subscriber gets as a live message: RETAIN 0 [MQTT-3.3.1-9]."""
        packet = self._qos0_packet
        if packet is None:
            packet = encode_publish(self.topic, self.payload, 0, False, False, None)
            self._qos0_packet = packet
        return packet

    def head(self, qos: int, *, retain: bool, dup: bool) -> bytes:
        """The PUBLISH for a QoS 1/2 subscriber up to its packet id (`publish_head`)."""
        if qos != 1 or retain or dup:
            return publish_head(self.topic, len(self.payload), qos, retain, dup)
        head = self._qos1_head
        if head is None:
            head = self._qos1_head = publish_head(self.topic, len(self.payload), 1)
        return head

    @property
    def size(self) -> int:
        """Bytes that the message counts for in queues: payload, topic and some overhead."""
        return len(self.payload) + len(self.topic) + OVERHEAD
