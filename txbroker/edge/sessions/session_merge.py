"""
Merges two sessions of one client: subscriptions of both, and messages that either waited for.

Each session was delivered some records of the zones' journals, as its subscriptions matched, and
came to other offsets. The merged session reads each journal on from the lower offset. Records that
either session was delivered are omitted (`MergedPart`). So no message is lost, and none is
delivered twice. Records of the older session may come after newer ones: no order holds between the
two sessions.

The client may resend any publish that it has not released, as sent in either session. The receiver
knows both (`SessionReceiver.merge_flows`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.cursor import Cursor, MergedPart
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage

ALL = (1 << 63) - 1
"""An offset behind every record; for a part that had ended for the other session."""


def merge_into(
    known: Session, other: Session, waiting: Iterable[OutboundMessage]
) -> frozenset[str]:
    """
    Add the subscriptions and the waiting messages of `other` to `known`.

    The messages of `waiting` were in flight to the client, which no longer knows which of them
    came. So `known` sends them as new.

    Returns the filters of `known` that a zone had confirmed to `other` alone. These filters begin
    where the other session's did.
    """
    left: defaultdict[JournalId, set[int]] = defaultdict(set)
    for entry in waiting:
        if entry.place is not None and not entry.released:
            left[entry.place.part].add(entry.place.offset)
        elif entry.message is not None:
            known.sender.deliver(OutboundMessage(entry.message, entry.qos, entry.retain))
    known.durable_sender.discard_queue()
    for part in {**other.places.behind, **dict.fromkeys(left)}:
        _merge_part(known, other, part, frozenset(left[part]))
    for part, offset in other.places.cut_off.items():
        known.places.suspend(part, offset)
    return frozenset(_add_subscriptions(known, other))


def begun_filters(session: Session, part: JournalId) -> tuple[tuple[str, int], ...]:
    """Return the filters through which the session was delivered the part, with their starts."""
    return tuple(
        (topic_filter, subscription.starts.get(part, 0))
        for topic_filter, subscription in session.subscriptions.items()
        if subscription.qos and part.zone not in subscription.pending
    )


def _merge_part(known: Session, other: Session, part: JournalId, left: frozenset[int]) -> None:
    theirs = other.places.behind.get(part)
    reached = ALL if theirs is None else theirs.offset
    mine = known.places.behind.get(part)
    begun = begun_filters(known, part)
    come = ALL
    if begun:
        come = known.places.taken.get(part, 0) if mine is None else mine.offset
    had = (
        *known.places.had.get(part, ()),
        *other.places.had.get(part, ()),
        MergedPart(through=come, filters=begun),
        MergedPart(through=reached, filters=begun_filters(other, part), left=left),
    )
    known.places.set_had(part, had)
    if mine is None:
        mine = theirs or Cursor(part, reached)
        known.places.add(mine)
    mine.offset = min((come, reached, *(offset - 1 for offset in left)))


def _add_subscriptions(known: Session, other: Session) -> Iterator[str]:
    begun = {part.zone for part in other.places.behind}
    for topic_filter, subscription in other.subscriptions.items():
        mine = known.subscriptions.get(topic_filter)
        if mine is None:
            known.add(subscription)
            continue
        mine.grant(max(mine.qos, subscription.qos))
        for part, start in list(mine.starts.items()):
            mine.exclude(part, min(start, subscription.starts.get(part, 0)))
        confirmed = (mine.pending & begun) - subscription.pending
        if confirmed:
            mine.confirm(confirmed)
            for part, start in subscription.starts.items():
                if part.zone in confirmed:
                    mine.exclude(part, start)
            yield topic_filter
    for shared in other.shared.values():
        if shared.topic_filter not in known.shared:
            known.share(shared)
    known.on_subscriptions_changed()
