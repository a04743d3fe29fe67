"""A publish of QoS 1 or 2 that comes from a client, until its flow has ended."""

from __future__ import annotations

from zlib import crc32

import attrs

StreamKey = tuple[str, int, str, int]
"""(edge, incarnation, zone, stream): a stream of publishes between an edge and owners."""

OriginId = tuple[StreamKey, int]
"""The stream that a publish was sent in, and its sequence there."""


@attrs.define(slots=True, eq=False)
class InboundPublish:
    """
    A QoS 1/2 publish from the client; `taken` once its owner has it, or this node's outbox.

    `owed` counts the PUBLISH packets of it on the present connection that are not acknowledged:
    each gets its own answer. Of QoS 2 in a durable session it is kept what it was sent with (the
    stream and its sequence there: `origin`) and which `entry` of an outbox it is: a crash must not
    have it published twice (protocol rule 16). `is_in_doubt`: after one, nobody knows yet.
    `checksum`: of its message, see `checksum_of`. `must_match`: two sessions of the client became
    one, and it may have gone on in either, so that its packet id may be another publish's by now.
    `serial`: of the run in which it came.
    """

    packet_id: int
    qos: int
    taken: bool = False
    owed: int = 1
    origin: OriginId | None = None
    entry: OriginId | None = None
    is_in_doubt: bool = False
    checksum: int = 0
    must_match: bool = False
    serial: int = 0

    @property
    def is_kept(self) -> bool:
        """True if a durable session must know of it after a crash."""
        return self.qos == 2 and bool(self.taken or self.origin or self.entry)


def checksum_of(topic: str, payload: bytes) -> int:
    """Of a message, to tell whether another one with its packet id is the same."""
    return crc32(payload, crc32(topic.encode()))
