"""A client's publish of QoS 1 or 2, until its flow has ended."""

from __future__ import annotations

from zlib import crc32

import attrs

StreamKey = tuple[str, int, str, int]
"""(edge, incarnation, zone, stream): a stream of publishes between an edge and owners."""

OriginId = tuple[StreamKey, int]
"""The stream of a publish, and its sequence in the stream."""


@attrs.define(slots=True, eq=False)
class InboundPublish:
    """
    A QoS 1 or 2 publish from the client; `taken`: its owner, or this node's outbox, has accepted
    it.

    - `owed`: the number of its PUBLISH packets on the present connection without an
      acknowledgement. Each packet gets its own acknowledgement.
    - `origin`: the stream and sequence with which a QoS 2 publish of a durable session was sent.
    - `entry`: its entry in an outbox. The session stores `origin` and `entry`: a crash must not
      publish the message twice (protocol rule 16).
    - `is_in_doubt`: after a crash, its outcome is still unknown.
    - `checksum`: of its message, see `checksum_of`.
    - `must_match`: two sessions of the client were merged. The client may have continued in either,
      so the packet id may name another publish by now.
    - `serial`: of the run in which it came.
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
        """True if a durable session must know the flow after a crash."""
        return self.qos == 2 and bool(self.taken or self.origin or self.entry)


def checksum_of(topic: str, payload: bytes) -> int:
    """Return a checksum that tells whether two messages with one packet id are equal."""
    return crc32(payload, crc32(topic.encode()))
