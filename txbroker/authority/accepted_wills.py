"""
The wills that a zone has taken: each is taken once, whoever sends it (protocol rule 25).

That a node is dead nobody knows for certain, so its clients' wills may be sent by several nodes,
and by itself when it is back. What was taken is a mark like those of streams: written with the
record, moved with the zone.

A will that its client's own node has sent is remembered for `own_for`: that node sends it no more,
and the keepers that have not heard of it yet send theirs within `will_after`. One that a keeper has
sent is remembered for `OTHERS_FOR`: the client's node may be cut off for as long as its sessions
live, and send it when it is back. A will is remembered as long if it came with the zone, or was
there at the start: who sent it is not known. The same goes for what a node tells that gives its
zone back: that counts for topics of its zone, and pushes out none that were taken here.
"""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.delegation.zone_snapshot import MarkKey, mark_of_will, will_of_mark
from txbroker.model.topics import apexes_around
from txbroker.mqtt.wire.message import Message, WillId, owner_of_will

LIMIT = 20_000
"""Wills of each of the three kinds that are remembered; beyond that the oldest is forgotten."""

MOST = 3 * LIMIT
"""Wills that are remembered: sent by their own node, by another one, or told with a zone."""

SECOND = 1_000_000

OWN_FOR = 600 * SECOND
OTHERS_FOR = 7 * 24 * 3600 * SECOND
"""Microseconds that the node has lived."""


class AcceptedWills:
    """Among the `marks` of a zone at node `node`, those of wills."""

    def __init__(self, marks: dict[MarkKey, int], node: str = "", limit: int = LIMIT) -> None:
        self.node = node
        self.own_for = OWN_FOR
        self._marks = marks
        self._limit = limit
        self._now = 0
        self._open: set[MarkKey] = set()
        self._own: dict[MarkKey, int] = {}  # since when; the oldest first
        self._others: dict[MarkKey, int] = {}
        self._told: dict[MarkKey, int] = {}

    def __len__(self) -> int:
        return len(self._own) + len(self._others) + len(self._told)

    def load(self) -> None:
        """The zone begins: nothing is on its way to the disk."""
        self._open.clear()
        self._own.clear()
        self._others.clear()
        self._told.clear()
        self.learn(self._marks)

    def learn(self, keys: Iterable[MarkKey]) -> None:
        """These came among the marks; who sent them is not known."""
        for key in keys:
            if will_of_mark(key) is not None:
                (self._told if key[2] else self._others)[key] = self._now
        self._shorten(self._others)
        self._shorten(self._told)

    def is_known(self, key: MarkKey) -> bool:
        """True if the mark says of a will what this node knows by itself."""
        will = will_of_mark(key)
        return will is not None and mark_of_will(will) in self._marks

    def has(self, will: WillId, topic: str) -> bool:
        """True if it was taken, here or where the topic was served before."""
        if mark_of_will(will) in self._marks:
            return True
        return bool(self._told) and any(
            mark_of_will(will, apex) in self._marks for apex in apexes_around(topic)
        )

    def begin(self, message: Message) -> bool:
        """A will came in; False where it did before, and may just not be durable yet."""
        assert message.will is not None
        key = mark_of_will(message.will)
        if key in self._open or self.has(message.will, message.topic):
            return False
        self._open.add(key)
        return True

    def settle(self, message: Message) -> None:
        """It is as safe as it gets."""
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
        """Now and then: `lived` is what the node has lived, in microseconds."""
        if not self._now:  # what was there at the start is as old as this first look
            for kind in (self._own, self._others, self._told):
                kind.update(dict.fromkeys(kind, lived))
        self._now = lived
        kinds = ((self._own, self.own_for), (self._others, OTHERS_FOR), (self._told, OTHERS_FOR))
        for kind, age in kinds:
            while kind and next(iter(kind.values())) <= lived - age:
                self._forget_oldest(kind)

    def expect(self, will_after: float) -> None:
        """Keepers send a will so many seconds after its node fell silent, and later by some."""
        self.own_for = max(OWN_FOR, int(2 * will_after * SECOND))

    # internal

    def _shorten(self, kind: dict[MarkKey, int]) -> None:
        while len(kind) > self._limit:
            self._forget_oldest(kind)

    def _forget_oldest(self, kind: dict[MarkKey, int]) -> None:
        oldest = next(iter(kind))
        del kind[oldest]
        self._marks.pop(oldest, None)
