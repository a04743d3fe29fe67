"""What of a chunk of a journal is a session's, and with which QoS it gets that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from txbroker.authority.journal import Chunk, Record
from txbroker.message import Message
from txbroker.mqtt.cursor import Cursor
from txbroker.mqtt.session import Session
from txbroker.place import PartKey, Place


def above(chunk: Chunk, offset: int) -> Iterator[Record]:
    """The chunk's records behind the offset."""
    records = chunk.records
    first = bisect_left(records, offset + 1, key=lambda record: record.offset)
    return iter(records[first:])


def message_at(chunk: Chunk, offset: int) -> Message | None:
    """The message at the offset, if the journal has it still."""
    record = next(above(chunk, offset - 1), None)
    return record.message if record is not None and record.offset == offset else None


def wanted(session: Session, cursor: Cursor, chunk: Chunk) -> Iterator[tuple[Record, int]]:
    """What the session gets of what lies behind its cursor, and with which QoS."""
    part = cursor.part
    known: dict[tuple[str, int], int] = {}
    # Records of one topic and QoS are alike to it, unless one of its filters began among them.
    is_alike = part not in session.places.had and all(
        s.starts.get(part, 0) <= cursor.offset for s in session.subscriptions.values()
    )
    for record in above(chunk, cursor.offset):
        message = record.message
        key = message.topic, message.qos
        qos = known.get(key)
        if qos is None or not is_alike:
            qos = known[key] = granted_qos(session, part, record)
        if qos:
            yield record, qos


def granted_qos(session: Session, part: PartKey, record: Record) -> int:
    """With which QoS the session gets the record; 0: not at all, as QoS 0 is not queued."""
    granted = 0
    topic = record.message.topic
    if session.places.had and session.places.has_had(Place(part, record.offset), topic):
        return 0
    for subscription in session.matching(topic):
        is_its = subscription.starts.get(part, 0) < record.offset
        if is_its and part.zone not in subscription.pending:
            granted = max(granted, subscription.qos)
    return min(granted, record.message.qos)
