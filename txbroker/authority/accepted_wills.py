"""
The wills that a zone has accepted: each once, whichever node sends it (protocol rule 25).

No node knows for certain that another node is dead. So several nodes may send a client's will, and
the client's own node sends it when it is back. An accepted will leaves a mark like a publish
stream. The mark is written with the record and moves with the zone.

A mark expires by lived time:

- A will that its client's own node sent expires after `own_for`. That node sends it no more, and a
  keeper that has not heard so sends its own within `will_after`.
- A will that a keeper sent expires after `OTHERS_FOR`. The client's node may be cut off as long as
  its sessions live. It sends the will when it is back.
- A will of unknown sender also expires after `OTHERS_FOR`: it came with the zone, or was stored
  before this start.
- A will that a node reports when it gives its zone back expires after `OTHERS_FOR` too. The will
  counts for topics of that zone only, and evicts no will that this node accepted.
"""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.delegation.zone_snapshot import MarkKey, mark_of_will, will_of_mark
from txbroker.model.topics import apexes_around
from txbroker.mqtt.wire.message import Message, WillId, owner_of_will

LIMIT = 20_000
"""The most remembered wills of each of the three kinds; beyond that the oldest mark is evicted."""

MOST = 3 * LIMIT
"""The most remembered wills: sent by their own node, by another node, or reported with a zone."""

SECOND = 1_000_000

OWN_FOR = 600 * SECOND
OTHERS_FOR = 7 * 24 * 3600 * SECOND
"""Lifetimes of marks, in microseconds that the node has lived."""


class AcceptedWills:
    """The wills among the `marks` of a zone at node `node`."""

    def __init__(self, marks: dict[MarkKey, int], node: str = "", limit: int = LIMIT) -> None:
        self.node = node
        self.own_for = OWN_FOR
        self._marks = marks
        self._limit = limit
        self._now = 0
        self._open: set[MarkKey] = set()
        self._own: dict[MarkKey, int] = {}  # the time of acceptance; the oldest first
        self._others: dict[MarkKey, int] = {}
        self._told: dict[MarkKey, int] = {}

    def __len__(self) -> int:
        return len(self._own) + len(self._others) + len(self._told)

    def load(self) -> None:
        """Begin with the zone's marks; no will is waiting for the disk."""
        self._open.clear()
        self._own.clear()
        self._others.clear()
        self._told.clear()
        self.add(self._marks)

    def add(self, keys: Iterable[MarkKey]) -> None:
        """Remember wills among marks that were loaded or received; their senders are unknown."""
        for key in keys:
            if will_of_mark(key) is not None:
                (self._told if key[2] else self._others)[key] = self._now
        self._shorten(self._others)
        self._shorten(self._told)

    def is_known(self, key: MarkKey) -> bool:
        """True if the mark is a will's and this node has accepted that will itself."""
        will = will_of_mark(key)
        return will is not None and mark_of_will(will) in self._marks

    def has(self, will: WillId, topic: str) -> bool:
        """True if this zone, or an earlier zone of the topic, has accepted the will."""
        if mark_of_will(will) in self._marks:
            return True
        return bool(self._told) and any(
            mark_of_will(will, apex) in self._marks for apex in apexes_around(topic)
        )

    def start(self, message: Message) -> bool:
        """Begin to accept a will; return False if it was accepted before, durable or not yet."""
        assert message.will is not None
        key = mark_of_will(message.will)
        if key in self._open or self.has(message.will, message.topic):
            return False
        self._open.add(key)
        return True

    def finish(self, message: Message) -> None:
        """Mark the will as accepted: its record is as durable as it will be."""
        assert message.will is not None
        key = mark_of_will(message.will)
        self._open.discard(key)
        self._marks[key] = 1
        sender = message.edge or self.node
        is_own = message.will[0] == owner_of_will(sender, message.client_id)
        kind = self._own if is_own else self._others
        kind[key] = self._now
        self._shorten(kind)

    def forget_old(self, lived: int) -> None:
        """
        Expire old marks; `lived` is the node's lived time in microseconds. Called now and then.
        """
        if not self._now:  # marks of the start count from this first call
            for kind in (self._own, self._others, self._told):
                kind.update(dict.fromkeys(kind, lived))
        self._now = lived
        kinds = ((self._own, self.own_for), (self._others, OTHERS_FOR), (self._told, OTHERS_FOR))
        for kind, age in kinds:
            while kind and next(iter(kind.values())) <= lived - age:
                self._forget_oldest(kind)

    def expect(self, will_after: float) -> None:
        """
        Set `own_for` by `will_after`: keepers send a will that many seconds after its node fell
        silent, or later.
        """
        self.own_for = max(OWN_FOR, int(2 * will_after * SECOND))

    # internal

    def _shorten(self, kind: dict[MarkKey, int]) -> None:
        while len(kind) > self._limit:
            self._forget_oldest(kind)

    def _forget_oldest(self, kind: dict[MarkKey, int]) -> None:
        oldest = next(iter(kind))
        del kind[oldest]
        self._marks.pop(oldest, None)
