"""
CORE: from where to where subscriptions held, worked out from the rows of ledgers.

A subscription says itself where it began and ended in each part (`start`, `end`). Where the topics
of a zone went on in another part, it went along: that follows from the passages. Nothing else
does, so who lacks the ledger of a node is told too little, not too much.
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
    A subscription begins to hold above an offset of a part, at a QoS, or (`qos` None) ends there.
    Of two at one offset the later one counts; `time` in microseconds UTC, `number` within a ledger.
    """

    part: JournalId
    offset: int
    qos: int | None
    time: int
    number: int = 0


@attrs.frozen(kw_only=True)
class Coverage:
    """
    A subscription held for the topics within an apex from above the offset `since` up to `until`.
    `time` is that of the event that says so.
    """

    part: JournalId
    since: int
    until: int
    qos: int
    time: int
    within: str = ""


def covered(
    topic_filter: str, events: Iterable[SubscriptionEvent], passages: Sequence[EpochTransition]
) -> list[Coverage]:
    """Where one subscription of one session held; only at QoS 1 and 2."""
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
        for passage in passages:
            gone_on = _follow(topic_filter, span, passage, by_part)
            if gone_on is not None and gone_on not in followed:
                followed.add(gone_on)
                due.append(gone_on)
                found.append(gone_on)
    return [span for span in found if span.qos]


def _own(events: Sequence[SubscriptionEvent]) -> Iterable[Coverage]:
    """What the events of one part say, in their order."""
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
    passage: EpochTransition,
    by_part: dict[JournalId, list[SubscriptionEvent]],
) -> Coverage | None:
    """Where a subscription goes on that held in the part as topics left it; None: it did not."""
    left, entered = passage.left, passage.entered
    if span.part != left.part or not may_match_within(topic_filter, passage.apex):
        return None
    if not (span.since <= left.offset and (left.offset < span.until or span.until == END)):
        return None
    if is_within(passage.apex, span.within):
        within = passage.apex
    elif is_within(span.within, passage.apex):
        within = span.within
    else:
        return None
    # What the session says itself of the part counts from there on.
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
