"""
CORE: computes the ranges in which subscriptions held, from the rows of ledgers.

Rows `start` and `end` give a subscription's begin and end in each part. When the topics of a zone
continue in another part, the subscription follows them: the passages show that. No other source
adds ranges. So without the ledger of a node the ranges are too few, never too many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import attrs

from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within, may_match_within

END = (1 << 62) - 1
"""An offset above all others."""


@attrs.frozen(kw_only=True)
class SubscriptionEvent:
    """
    A subscription begins above an offset of a part at `qos`, or ends there (`qos` None).

    Of two events at one offset the later one counts. `time` is in microseconds UTC, `number` is the
    number of the row in its ledger.
    """

    part: JournalId
    offset: int
    qos: int | None
    time: int
    number: int = 0


@attrs.frozen(kw_only=True)
class Coverage:
    """
    A subscription held for topics within the apex `within`, above the offset `since` up to `until`.

    `time` is the time of the event that states this, in microseconds UTC.
    """

    part: JournalId
    since: int
    until: int
    qos: int
    time: int
    within: str = ""


def covered(
    topic_filter: str, events: Iterable[SubscriptionEvent], transitions: Sequence[EpochTransition]
) -> list[Coverage]:
    """Return the ranges in which one subscription of one session held at QoS 1 or 2."""
    by_part: dict[JournalId, list[SubscriptionEvent]] = defaultdict(list)
    for event in events:
        by_part[event.part].append(event)
    for known in by_part.values():
        known.sort(key=lambda event: (event.offset, event.time, event.number))
    found = [span for known in by_part.values() for span in _own(known)]
    followed = set(found)
    due = list(found)
    while due:
        span = due.pop()
        for transition in transitions:
            gone_on = _follow(topic_filter, span, transition, by_part)
            if gone_on is not None and gone_on not in followed:
                followed.add(gone_on)
                due.append(gone_on)
                found.append(gone_on)
    return [span for span in found if span.qos]


def _own(events: Sequence[SubscriptionEvent]) -> Iterable[Coverage]:
    """Return the ranges that the ordered events of one part state."""
    for place, event in enumerate(events):
        until = events[place + 1].offset if place + 1 < len(events) else END
        if event.qos is not None and until > event.offset:
            yield Coverage(
                part=event.part,
                since=event.offset,
                until=until,
                qos=event.qos,
                time=event.time,
            )


def _follow(
    topic_filter: str,
    span: Coverage,
    transition: EpochTransition,
    by_part: dict[JournalId, list[SubscriptionEvent]],
) -> Coverage | None:
    """Return the range that continues `span` after a passage; None if the passage has none."""
    left, entered = transition.left, transition.entered
    if span.part != left.part or not may_match_within(topic_filter, transition.apex):
        return None
    if not (span.since <= left.offset and (left.offset < span.until or span.until == END)):
        return None
    if is_within(transition.apex, span.within):
        within = transition.apex
    elif is_within(span.within, transition.apex):
        within = span.within
    else:
        return None
    # An event of the new part ends the inherited range: the session's own statement counts.
    said = (e.offset for e in by_part.get(entered.part, ()) if e.offset >= entered.offset)
    until = min(said, default=END)
    if until <= entered.offset:
        return None
    return Coverage(
        part=entered.part,
        since=entered.offset,
        until=until,
        qos=span.qos,
        time=span.time,
        within=within,
    )
