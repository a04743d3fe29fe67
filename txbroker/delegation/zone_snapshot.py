"""
What moves when a zone changes hands, in parts, and where it waits until the new owner opens.

Order of the steps (protocol rule 12): the bulk of the retained messages is copied while the old
owner serves on (`Outgoing.bulk`); then the fence, one moment at one offset for publishes, interests
and marks alike, and with it the rest (`Outgoing.rest`); the new owner has it all (`ReceivedZone`);
the parent commits; the new owner opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message, WillId

PART_BYTES = 1024 * 1024
"""A part of a snapshot ends when it holds this much; well below gRPC's message limit."""

MarkKey = tuple[str, int, str, int]
"""(edge, incarnation, zone, stream): what a duplicate mark belongs to."""

_WILL = "will/"  # no node's name has a slash


def mark_of_will(will: WillId, apex: str = "") -> MarkKey:
    """
    What says that a will was taken: a stream of it alone. `apex`: another node says so, of a zone
    that it gave back, and it counts for topics of that one.
    """
    name, life, number = will
    return _WILL + name, life, apex, number


def will_of_mark(key: MarkKey) -> WillId | None:
    """The mirror of `mark_of_will`; None for other streams."""
    name, life, _, number = key
    return (name.removeprefix(_WILL), life, number) if name.startswith(_WILL) else None


@attrs.frozen(kw_only=True)
class EdgeInterest:
    """The filters of one edge that can match in the zone."""

    edge: str
    incarnation: int
    filters: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ZoneSnapshot:
    """One part; every field may be empty. `cleared` are topics whose retained message went."""

    retained: tuple[Message, ...] = ()
    cleared: tuple[str, ...] = ()
    interests: tuple[EdgeInterest, ...] = ()
    delegations: tuple[ZoneCut, ...] = ()
    marks: tuple[tuple[MarkKey, int], ...] = ()


def in_parts(messages: Iterable[Message]) -> Iterator[ZoneSnapshot]:
    """Retained messages, cut into snapshots of about `PART_BYTES`."""
    part: list[Message] = []
    size = 0
    for message in messages:
        part.append(message)
        size += message.size
        if size >= PART_BYTES:
            yield ZoneSnapshot(retained=tuple(part))
            part, size = [], 0
    if part:
        yield ZoneSnapshot(retained=tuple(part))


class ReceivedZone:
    """
    A zone's state on the new owner's side, until it opens.

    `predecessor` is where the earlier owner's journal ends: its zone, epoch and last offset
    (protocol rule 7).
    """

    def __init__(self) -> None:
        self.retained: dict[str, Message] = {}
        self.interests: list[EdgeInterest] = []
        self.delegations: list[ZoneCut] = []
        self.marks: dict[MarkKey, int] = {}
        self.predecessor: tuple[str, int, int] | None = None

    def take(self, part: ZoneSnapshot) -> None:
        """Add a part; a later one overrides an earlier one."""
        for message in part.retained:
            self.retained[message.topic] = message
        for topic in part.cleared:
            self.retained.pop(topic, None)
        self.interests.extend(part.interests)
        self.delegations.extend(part.delegations)
        self.marks.update(part.marks)
