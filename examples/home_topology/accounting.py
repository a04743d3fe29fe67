"""
The account of messages: which were lost, came twice, or came in the wrong order. It is counted from
topic and sequence number alone, never from a broker's own counters.

Pure: no clock, no thread, no network. The publisher's side tells which numbers were
acknowledged to it, the subscriber's side which numbers arrived; everything else follows.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator

import attrs


class Arrival(enum.Enum):
    """
    The meaning of the arrival of one sequence number.
    """

    FRESH = "in order, with or without a gap before it"
    LATE = "for the first time, but behind a higher number"
    REPEATED = "not for the first time"


@attrs.define(slots=True)
class Sequence:
    """
    The set of numbers seen so far of 1, 2, 3, ...: the highest, and the holes below it. Small
    as long as few are missing, however many were seen.
    """

    highest: int = 0
    missing: set[int] = attrs.field(factory=set)

    def note(self, number: int) -> Arrival:
        """
        Take one number, 1 or more, and say what its arrival means.
        """
        if number > self.highest:
            self.missing.update(range(self.highest + 1, number))
            self.highest = number
            return Arrival.FRESH
        if number in self.missing:
            self.missing.remove(number)
            return Arrival.LATE
        return Arrival.REPEATED

    def __contains__(self, number: int) -> bool:
        return 1 <= number <= self.highest and number not in self.missing

    def __len__(self) -> int:
        return self.highest - len(self.missing)

    def absent_from(self, other: Sequence) -> Iterator[int]:
        """
        The numbers that were seen here and not in `other`, in rising order.
        """
        behind = range(other.highest + 1, self.highest + 1)
        return (number for number in (*sorted(other.missing), *behind) if number in self)


@attrs.define(slots=True)
class _Topic:
    acknowledged: Sequence = attrs.field(factory=Sequence)
    received: Sequence = attrs.field(factory=Sequence)
    duplicated: int = 0
    out_of_order: int = 0


@attrs.frozen(kw_only=True, slots=True)
class Count:
    """
    The reckoning of one zone. `published` counts messages acknowledged to the publisher, `received`
    those that arrived at least once. `duplicated` counts arrivals beyond the first, `out_of_order`
    first arrivals behind a later one of their topic.
    """

    published: int = 0
    received: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0

    def __add__(self, other: Count) -> Count:
        mine, theirs = attrs.astuple(self), attrs.astuple(other)
        names = [field.name for field in attrs.fields(Count)]
        return Count(**{n: a + b for n, a, b in zip(names, mine, theirs, strict=True)})


def owner(zones: Iterable[str], topic: str) -> str:
    """
    The apex of the zone that a topic lies in. It is the longest that is the topic itself or a whole
    number of its first levels. The root's apex, the empty string, takes the rest.
    """
    covering = [apex for apex in zones if apex and f"{topic}/".startswith(f"{apex}/")]
    return max(covering, key=len, default="")


class Ledger:
    """
    Both sides' notes on every topic, and what they amount to.
    """

    def __init__(self) -> None:
        self._topics: defaultdict[str, _Topic] = defaultdict(_Topic)

    # from the publisher

    def acknowledged(self, topic: str, seq: int) -> None:
        """
        The publisher got the acknowledgement for this message.
        """
        self._topics[topic].acknowledged.note(seq)

    # from the subscriber

    def received(self, topic: str, seq: int) -> Arrival:
        """
        The message reached the subscriber.
        """
        entry = self._topics[topic]
        arrival = entry.received.note(seq)
        entry.duplicated += arrival is Arrival.REPEATED
        entry.out_of_order += arrival is Arrival.LATE
        return arrival

    # from whoever wants to know

    def lag(self) -> int:
        """
        The number of acknowledged messages that the subscriber may still get, if order holds. These
        are above the highest number that it has, summed over the topics.
        """
        entries = self._topics.values()
        return sum(max(0, e.acknowledged.highest - e.received.highest) for e in entries)

    def lost(self) -> list[tuple[str, int]]:
        """
        Every (topic, number) that was acknowledged to the publisher and has not arrived.
        """
        return [
            (topic, number)
            for topic, entry in sorted(self._topics.items())
            for number in entry.acknowledged.absent_from(entry.received)
        ]

    def by_zone(self, zones: Iterable[str]) -> dict[str, Count]:
        """
        The reckoning of each zone given by its apex, zones without traffic included.
        """
        counts = {apex: Count() for apex in zones}
        for topic, entry in self._topics.items():
            counts[owner(counts, topic)] += Count(
                published=len(entry.acknowledged),
                received=len(entry.received),
                lost=sum(1 for _ in entry.acknowledged.absent_from(entry.received)),
                duplicated=entry.duplicated,
                out_of_order=entry.out_of_order,
            )
        return counts
