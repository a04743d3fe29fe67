"""An application message between its publisher and its subscribers, across nodes."""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar

import attrs

from txbroker.mqtt.wire.encoder import encode_publish, pack_packet_id, publish_head
from txbroker.mqtt.wire.message_expiry import expiry_of, set_expiry, with_expiry
from txbroker.mqtt.wire.property_list import LISTED, LISTED_LEVEL, property_list

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
    - `properties`: those of its list, in their order, without their length; a client below level 5
      gets none.
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
    properties: bytes = b""
    _qos0_packet: bytes | None = attrs.field(default=None, init=False, repr=False)
    _qos0_packet_5: bytes | None = attrs.field(default=None, init=False, repr=False)
    _qos1_head: bytes | None = attrs.field(default=None, init=False, repr=False)
    _qos1_head_5: bytes | None = attrs.field(default=None, init=False, repr=False)

    @property
    def link_packet(self) -> bytes:
        """
        Return the stored form of the PUBLISH: RETAIN is the publisher's, packet id and DUP mean
        nothing.
        """
        packet = self._link_packet
        if packet is None:
            packet_id = 1 if self.qos else None
            packet = (
                self._listed_packet(packet_id)
                if self.properties
                else encode_publish(
                    self.topic, self.payload, self.qos, self.retain, False, packet_id
                )
            )
            self._link_packet = packet
        return packet

    def without_properties(self) -> Message:
        """Return the message as a node gets it that knows of no properties."""
        packet = self._link_packet
        has_list = packet is not None and packet[0] & LISTED == LISTED  # which may be empty
        if not (self.properties or has_list):
            return self
        return attrs.evolve(self, properties=b"", packet=None)

    def property_list(self, level: int) -> bytes:
        """Return what stands before the payload of a PUBLISH for a client of this level."""
        return property_list(self.properties) if level >= LISTED_LEVEL else b""

    def qos0_packet(self, level: int = 4, *, retain: bool = False) -> bytes:
        """Return the PUBLISH for a QoS 0 subscriber; a live one has no RETAIN [MQTT-3.3.1-9]."""
        if retain:
            return self._qos0(level, retain=True)
        if level >= LISTED_LEVEL:
            packet = self._qos0_packet_5
            if packet is None:
                packet = self._qos0_packet_5 = self._qos0(level)
            return packet
        packet = self._qos0_packet
        if packet is None:
            packet = self._qos0_packet = self._qos0(level)
        return packet

    def head(self, qos: int, *, retain: bool, dup: bool, level: int = 4) -> bytes:
        """
        Return the PUBLISH for a QoS 1 or 2 subscriber up to its packet id (`publish_head`).

        `property_list` and `payload` follow the packet id.
        """
        if qos != 1 or retain or dup:
            return self._head(qos, level, retain, dup)
        if level >= LISTED_LEVEL:
            head = self._qos1_head_5
            if head is None:
                head = self._qos1_head_5 = self._head(1, level)
            return head
        head = self._qos1_head
        if head is None:
            head = self._qos1_head = self._head(1, level)
        return head

    @property
    def expiry(self) -> int | None:
        """Return the seconds after which no client gets the message; None: it does not expire."""
        return expiry_of(self.properties) if self.properties else None

    def with_expiry(self, seconds: float) -> Message:
        """Return the message with what is left of its interval, rounded up; 0: it has expired."""
        return attrs.evolve(self, packet=None, properties=with_expiry(self.properties, seconds))

    def aged(self, seconds: float) -> Message:
        """Return the message with its interval less the seconds that it has waited."""
        expiry = self.expiry
        return self if expiry is None else self.with_expiry(expiry - seconds)

    def expiring(self, seconds: int) -> Message:
        """Return the message with this interval, whether it had one or not."""
        return attrs.evolve(self, packet=None, properties=set_expiry(self.properties, seconds))

    @property
    def size(self) -> int:
        """
        Return the bytes that the message counts in queues: payload, properties, topic and some
        overhead.
        """
        return len(self.payload) + len(self.properties) + len(self.topic) + OVERHEAD

    def _listed_packet(self, packet_id: int | None) -> bytes:
        """Return the stored form with a list."""
        rest = property_list(self.properties) + self.payload
        head = publish_head(self.topic, len(rest), self.qos, self.retain)
        pieces = (head[1:], b"" if packet_id is None else pack_packet_id(packet_id), rest)
        return b"".join((bytes((head[0] | LISTED,)), *pieces))

    def _qos0(self, level: int, *, retain: bool = False) -> bytes:
        listed = self.property_list(level)
        head = publish_head(self.topic, len(listed) + len(self.payload), 0, retain)
        return head + listed + self.payload

    def _head(self, qos: int, level: int, retain: bool = False, dup: bool = False) -> bytes:
        size = len(self.property_list(level)) + len(self.payload)
        return publish_head(self.topic, size, qos, retain, dup)
