"""
The state that moves when a zone changes hands, in parts, and its holder until the new owner opens.

The order of the steps is protocol rule 12:

1. The old owner copies the bulk of the retained messages and serves on (`HandoverSource.bulk`).
2. The old owner fences: one moment at one offset for publishes, interests and marks.
3. The old owner sends the rest (`HandoverSource.rest`).
4. The new owner has the complete state (`ReceivedZone`) and makes the state durable.
5. The parent commits.
6. The new owner opens the zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from txbroker.delegation.delegation_table import DelegationState
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message, WillId

PART_BYTES = 1024 * 1024
"""Bytes after which a part of a snapshot ends; well below gRPC's message limit."""

MarkKey = tuple[str, int, str, int]
"""(edge, incarnation, zone, stream): the publish stream of a duplicate mark."""

Needs = dict[str, dict[JournalId, int]]
"""By edge and part: the offset above which the edge's sessions need records."""

_WILL = "will/"  # no node's name has a slash


def mark_of_will(will: WillId, apex: str = "") -> MarkKey:
    """
    Return the key of the mark that an accepted will leaves: a publish stream for this will alone.

    `apex`: the zone that another node gave back with this mark; the mark counts for topics of that
    zone. Empty: the mark counts for all topics.
    """
    name, life, number = will
    return _WILL + name, life, apex, number


def will_of_mark(key: MarkKey) -> WillId | None:
    """Return the will of a mark's key, the inverse of `mark_of_will`; None for other streams."""
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
    """
    A part of a snapshot; each field may be empty.

    `cleared`: topics whose retained message was removed since an earlier part.
    """

    retained: tuple[Message, ...] = ()
    cleared: tuple[str, ...] = ()
    interests: tuple[EdgeInterest, ...] = ()
    delegations: tuple[ZoneCut, ...] = ()
    marks: tuple[tuple[MarkKey, int], ...] = ()


def in_parts(messages: Iterable[Message]) -> Iterator[ZoneSnapshot]:
    """Yield retained messages in snapshots of about `PART_BYTES`."""
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
    A zone's state at the new owner, until the zone opens.

    `predecessor`: the end of the earlier owner's journal as zone, epoch and last offset (protocol
    rule 7).
    """

    def __init__(self) -> None:
        self.retained: dict[str, Message] = {}
        self.interests: list[EdgeInterest] = []
        self.delegations: list[ZoneCut] = []
        self.marks: dict[MarkKey, int] = {}
        self.predecessor: tuple[str, int, int] | None = None

    def merge(self, part: ZoneSnapshot) -> None:
        """Add a part; a later part overrides an earlier part."""
        for message in part.retained:
            self.retained[message.topic] = message
        for topic in part.cleared:
            self.retained.pop(topic, None)
        self.interests.extend(part.interests)
        self.delegations.extend(part.delegations)
        self.marks.update(part.marks)


@attrs.frozen(kw_only=True)
class StagedZone:
    """
    The received state of the zone `apex`.

    `epoch`: the epoch at which this node shall serve the zone. For a hand-back, the epoch at which
    the child served the zone. `needs`: the offsets of the zone's journal that edges still need.
    """

    apex: str
    epoch: int
    incoming: ReceivedZone
    needs: Needs = attrs.field(factory=dict)
    subtree: DelegationState = DelegationState()
