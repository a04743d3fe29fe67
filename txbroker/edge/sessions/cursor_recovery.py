"""The cursors that sessions get at a start: the positions of the edge advance without them."""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_filter_within, may_match_within
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.session.session import Session


def stay_behind(session: Session, positions: dict[JournalId, int]) -> bool:
    """
    Begin a cursor, at the positions or farther, in each part of a session that was not behind.

    Returns True if there was any such part.
    """
    known = {part.zone: part.epoch for part in positions}
    starts: dict[JournalId, int] = {}
    for subscription in session.subscriptions.values():
        for part, offset in subscription.starts.items():
            starts[part] = min(offset, starts.get(part, offset))
    parts = {**dict.fromkeys(session.places.taken, 0), **starts, **positions}
    is_new = False
    for part, offset in parts.items():
        is_past = known.get(part.zone, 0) > part.epoch
        if part in session.places.behind or part in session.places.cut_off or is_past:
            continue
        if not _touches(session, part.zone, known):
            continue
        since = max(offset, session.places.taken.get(part, 0))
        session.places.add(Cursor(part, since))
        is_new = True
    return is_new


def _touches(session: Session, zone: str, known: Iterable[str]) -> bool:
    """True if the zone may have records for the session that no deeper zone of `known` has."""
    depth = len(zone)
    deeper = [apex for apex in known if len(apex) > depth and apex.startswith(zone)]
    return any(
        may_match_within(topic_filter, zone)
        and zone not in subscription.pending
        and not any(is_filter_within(topic_filter, apex) for apex in deeper)
        for topic_filter, subscription in session.subscriptions.items()
    )
