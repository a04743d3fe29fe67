"""What of a chunk of a journal is a session's, and with which QoS it gets that."""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.journal.zone_journal import JournalChunk
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message

AT_ONCE = 16
"""Records that are looked up at first, then twice as many: there may be room for few of them."""


Found = tuple[int, int, int, int]
"""What a session gets: the record's place, offset and size, and with which QoS."""


def message_at(chunk: JournalChunk, offset: int) -> Message | None:
    """The message at the offset, if the journal has it still."""
    records = chunk.records
    place = records.stored.place_above(offset - 1)
    if place == len(records) or records[place].offset != offset:
        return None
    return records[place].message


def wanted(session: Session, part: JournalId, chunk: JournalChunk, after: int) -> Iterator[Found]:
    """What the session gets of what lies behind the offset."""
    known: dict[str, int] = {}
    # Records of one topic are alike to it, unless one of its filters began among them.
    is_alike = part not in session.places.had and all(
        s.starts.get(part, 0) <= after for s in session.subscriptions.values()
    )
    # Most of a chunk is not the session's: what many sessions cost that come back at once is what
    # they get, not the product of all.
    stored = chunk.records.stored
    most = AT_ONCE
    while found := stored.find(session.subscriptions, after, most):
        for place, offset, topic, level, size in found:
            granted = known.get(topic)
            if granted is None or not is_alike:
                granted = known[topic] = granted_qos(session, LogPosition(part, offset), topic)
            if granted:
                yield place, offset, size, granted if granted < level else level
        if len(found) < most:
            return
        after, most = offset, 2 * most


def granted_qos(session: Session, place: LogPosition, topic: str) -> int:
    """With which QoS the session gets a record at most; 0: not at all, as that is not queued."""
    granted = 0
    if session.places.had and session.places.has_had(place, topic):
        return 0
    for subscription in session.matching(topic):
        is_its = subscription.starts.get(place.part, 0) < place.offset
        if is_its and place.part.zone not in subscription.pending:
            granted = max(granted, subscription.qos)
    return granted
