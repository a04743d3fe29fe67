"""An application message between its publisher and its subscribers, across nodes."""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar

import attrs

from txbroker.mqtt.wire.encoder import encode_publish, publish_head

WillId = tuple[str, int, int]
"""
The id of a will: its owner, the life of the will's node, and the number of the connection.

The owner is a digest of client and node (see `directory.client_wills`).
"""


def owner_of_will(node: str, client_id: str) -> str:
    """
    Return the first part of a will's id: a digest that equals no node's name and no client id.
    """
    return blake2b(f"{node}\0{client_id}".encode(), digest_size=16).hexdigest()


OVERHEAD = 64
"""Bytes that a message counts beside its payload and topic."""


@attrs.define(slots=True, eq=False)
class Message:
    """
    An application message; senders share its encoded forms, so no caller may change it.

    - `qos` and `retain`: the publisher's.
    - `client_id`: the publisher's, for the record only.
    - `edge`: the node at which the message arrived, "" for this one; for the record only.
    - `will`: the id of a will, which may be sent more than once and must be accepted once.
    - `packet`: the `link_packet`, if the caller has it.
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
        """
        Return the raw PUBLISH for a link: RETAIN is the publisher's, packet id and DUP mean
        nothing.
        """
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
        """Return the live PUBLISH for a QoS 0 subscriber: RETAIN is 0 [MQTT-3.3.1-9]."""
        packet = self._qos0_packet
        if packet is None:
            packet = encode_publish(self.topic, self.payload, 0, False, False, None)
            self._qos0_packet = packet
        return packet

    def head(self, qos: int, *, retain: bool, dup: bool) -> bytes:
        """Return the PUBLISH for a QoS 1 or 2 subscriber up to its packet id (`publish_head`)."""
        if qos != 1 or retain or dup:
            return publish_head(self.topic, len(self.payload), qos, retain, dup)
        head = self._qos1_head
        if head is None:
            head = self._qos1_head = publish_head(self.topic, len(self.payload), 1)
        return head

    @property
    def size(self) -> int:
        """Return the bytes that the message counts in queues: payload, topic and some overhead."""
        return len(self.payload) + len(self.topic) + OVERHEAD
