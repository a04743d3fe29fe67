"""Finds the records of a journal chunk that match a session, and the QoS of their delivery."""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.journal.zone_journal import JournalChunk
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.match import Match, match_of
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message

AT_ONCE = 16
"""Records looked up at first, then twice as many: the session may have room for few."""


Found = tuple[int, int, int, int]
"""A record for a session: its place in the chunk, its offset and size, and the QoS of delivery."""


def message_at(chunk: JournalChunk, offset: int) -> Message | None:
    """Return the message at the offset, or None if the journal no longer has it."""
    records = chunk.records
    place = records.stored.place_above(offset - 1)
    if place == len(records) or records[place].offset != offset:
        return None
    return records[place].message


def wanted(session: Session, part: JournalId, chunk: JournalChunk, after: int) -> Iterator[Found]:
    """Yield the records behind the offset that the session gets."""
    known: dict[str, int] = {}
    # Records of one topic have one QoS, unless one of the session's filters began among them.
    is_alike = part not in session.places.had and all(
        s.starts.get(part, 0) <= after for s in session.subscriptions.values()
    )
    # Most records of a chunk do not match the session. Matching each record against each session
    # would cost the product of both when many sessions resume at once.
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
    """Return the highest QoS at which the session gets a record; 0: not queued at all."""
    return max((s.qos for s in _counting(session, place, topic)), default=0)


def record_match(session: Session, place: LogPosition, message: Message) -> Match | None:
    """Return what a session with special subscriptions gets of a record; None: nothing."""
    is_own = message.client_id == session.client_id
    return match_of(_counting(session, place, message.topic), is_own=is_own)


def _counting(session: Session, place: LogPosition, topic: str) -> Iterator[Subscription]:
    """Yield the subscriptions by which the session gets the record."""
    if session.places.had and session.places.has_had(place, topic):
        return
    for subscription in session.matching(topic):
        is_its = subscription.starts.get(place.part, 0) < place.offset
        if is_its and place.part.zone not in subscription.pending:
            yield subscription
