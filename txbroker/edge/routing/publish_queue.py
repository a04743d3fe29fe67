"""
The publishes of an edge's clients to one zone, and where each publish is.

A publish passes through three places, in this order and never back in another: `waiting` (not
sent), sent (numbered, not answered), and, where a link broke under it, in doubt. A publish in doubt
was sent once; the owner is asked for its mark before it is sent again (protocol rule 2). QoS 0 is
neither numbered nor kept once it was sent. Where the owner cannot be reached, QoS 1 and 2 leave the
queue for an outbox. The publishes that `drains` bring from there are sent beside the rest.

A waiting publish may have to wait for more than a link: for the answers to publishes in doubt, and
for earlier entries in an outbox. It may also wait for `holders`. Holders are the queues of earlier
owners that have still to answer for topics of this zone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import attrs

from txbroker.core import Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.publication import InDoubt, Item, Publication, topics_of, unfold
from txbroker.model.invariant import holds, ordered
from txbroker.model.topics import deepest_enclosing, is_within
from txbroker.mqtt.session.session import Session


class Draining(Protocol):
    """The entries of an outbox for one owner, as the queue there sees them."""

    @property
    def is_busy(self) -> bool:
        """True if entries for the owner may be left."""


class WaitingBytes:
    """Bytes that wait in all queues of an edge together."""

    def __init__(self) -> None:
        self.size = 0


class PublishQueue:
    """
    The publishes to one zone. `is_clear`: nothing here goes before a new publish. Others look at it
    on each packet; it is written here alone.

    Invariant: is_clear == nothing waits, is in doubt, is held or is behind an outbox.
    Invariant: each size is the sum of what waits.
    """

    __slots__ = (
        "_apex",
        "_backlog",
        "_doubts",
        "_drains",
        "_first_sequence",
        "_holders",
        "_hope_until",
        "_is_behind_outbox",
        "_qos0_size",
        "_sent",
        "_waiting",
        "_waiting_size",
        "is_clear",
    )

    def __init__(self, apex: str, backlog: WaitingBytes) -> None:
        self.is_clear = True
        self._apex = apex
        self._backlog = backlog
        self._waiting: deque[Item] = deque()
        self._waiting_size = 0
        self._qos0_size = 0
        self._sent: deque[Item] = deque()
        self._first_sequence = 1
        self._doubts: list[InDoubt] = []
        self._holders: set[PublishQueue] = set()
        self._drains: Sequence[Draining] = ()
        # what waits is later than entries in the drains
        self._is_behind_outbox = False
        self._hope_until = 0.0

    def check(self, *, is_linked: bool) -> None:
        """State where the publishes may be; after the end of a turn."""
        apex = self._apex
        holds(self, 2, "nothing is sent without a link", is_linked or not self._sent, apex)
        holds(self, 5, "QoS 0 is not kept", all(item.qos for item in self._sent), apex)
        ordered(self, 1, "sequences begin at 1", 1, self._first_sequence)
        for doubt in self._doubts:
            ordered(self, 2, "a doubt has its publishes", doubt.first, doubt.last)
        size = sum(item.size for item in self._waiting)
        holds(self, 34, "waiting bytes are counted", size == self._waiting_size, apex, size)
        qos0 = sum(item.size for item in self._waiting if not item.qos)
        holds(self, 34, "bytes of QoS 0 are counted", qos0 == self._qos0_size, apex, qos0)
        holds(self, 13, "a queue does not wait for itself", self not in self._holders, apex)
        is_clear = not (self._waiting or self.is_late)
        holds(self, 13, "clear if nothing goes first", self.is_clear == is_clear, apex, is_clear)

    # what goes before a new publish

    @property
    def is_queued(self) -> bool:
        """True if a publish waits, is in doubt, or is held: later ones of QoS 1 and 2 go behind."""
        return bool(self._waiting or self._doubts or self._holders)

    @property
    def is_late(self) -> bool:
        """True if what waits may not be sent, link or no link."""
        return bool(self._doubts or self._holders or self._is_behind_outbox)

    @property
    def is_ready(self) -> bool:
        """True if something waits, and may be sent."""
        return bool(self._waiting) and not self.is_late

    @property
    def is_held(self) -> bool:
        """True if an earlier owner has still to answer for topics of this zone."""
        return bool(self._holders)

    @property
    def holders(self) -> Collection[PublishQueue]:
        """The queues of those earlier owners."""
        return self._holders

    def hold(self, holder: PublishQueue) -> None:
        """Wait for the answers to publishes in the holder."""
        self._holders.add(holder)
        self.is_clear = False

    def release(self, holder: PublishQueue) -> None:
        """Wait for that holder no more."""
        self._holders.discard(holder)
        self._look()

    @property
    def drains(self) -> Sequence[Draining]:
        """The entries that outboxes have for the owner."""
        return self._drains

    @property
    def is_draining(self) -> bool:
        """True if an outbox has entries for the owner."""
        return bool(self._drains) and any(drain.is_busy for drain in self._drains)

    def drain(self, drains: Sequence[Draining]) -> None:
        """Note what outboxes have for the owner."""
        self._drains = drains

    def go_behind(self) -> None:
        """Wait until the drains are empty: they have earlier publishes of the same clients."""
        self._is_behind_outbox = True
        self.is_clear = False

    def pass_drains(self) -> None:
        """Wait for the drains no more."""
        self._is_behind_outbox = False
        self._look()

    def look_at_drains(self) -> None:
        """Wait for the drains no more if they are empty."""
        if self._is_behind_outbox and not self.is_draining:
            self.pass_drains()

    # what waits

    @property
    def waiting(self) -> Collection[Item]:
        """The publishes that were not sent, in order."""
        return self._waiting

    @property
    def waiting_size(self) -> int:
        """Bytes that wait."""
        return self._waiting_size

    @property
    def qos0_size(self) -> int:
        """Bytes of QoS 0 that wait."""
        return self._qos0_size

    @property
    def hope_until(self) -> float:
        """The moment up to which the owner counts as accepting what waits soon."""
        return self._hope_until

    def hope(self, until: float) -> None:
        """Set the moment up to which the owner counts as accepting what waits soon."""
        self._hope_until = until

    def wait(self, item: Item) -> None:
        """Queue an item behind all that waits."""
        self._waiting.append(item)
        self.is_clear = False
        self._count(item, 1)

    def wait_first(self, items: Sequence[Item]) -> None:
        """Queue items, in their order, before all that waits."""
        for item in reversed(items):
            self._waiting.appendleft(item)
            self.is_clear = False
            self._count(item, 1)

    def next_waiting(self) -> Item:
        """Dequeue the first item that waits."""
        item = self._waiting.popleft()
        self._count(item, -1)
        if not self._waiting:
            self._look()
        return item

    def take_waiting(self) -> list[Publication]:
        """Dequeue all that waits, in order, each publish by itself."""
        return unfold([self.next_waiting() for _ in range(len(self._waiting))])

    def unfold_waiting(self) -> Sequence[Publication]:
        """Split the waiting runs into publishes, in place; return these."""
        if any(not isinstance(item, Publication) for item in self._waiting):
            self.wait_first(self.take_waiting())
        return [item for item in self._waiting if isinstance(item, Publication)]

    def drop_waiting_qos0(self) -> int:
        """Drop the waiting QoS 0 publishes; return how many."""
        dropped = sum(item.count for item in self._waiting if not item.qos)
        if dropped:
            items = [self.next_waiting() for _ in range(len(self._waiting))]
            self.wait_first([item for item in items if item.qos])
        return dropped

    def withdraw(self, session: Session) -> list[Publication]:
        """Take a session's waiting publishes of QoS 1 and 2 out; return these."""
        if not any(item.session is session for item in self._waiting):
            return []
        waiting = self.take_waiting()
        gone = [p for p in waiting if p.session is session and p.message.qos]
        self.wait_first([p for p in waiting if p not in gone])
        return gone

    # what was sent

    @property
    def first_sequence(self) -> int:
        """Sequence of the first publish that was sent and is not answered, or of the next one."""
        return self._first_sequence

    @property
    def sent(self) -> Collection[Item]:
        """The publishes that were sent and are not answered, in order."""
        return self._sent

    def note_sent(self, item: Item) -> None:
        """Keep an item until the owner answers; not of QoS 0."""
        self._sent.append(item)

    def begin_stream(self) -> None:
        """Number what is sent from now on from 1: it goes in another stream."""
        self._first_sequence = 1

    def take_sent(self) -> list[Publication]:
        """Dequeue all that was sent and is not answered, each publish by itself."""
        sent, self._sent = self._sent, deque()
        return unfold(sent)

    def take_sent_through(self, sequence: int) -> list[Item]:
        """Dequeue the sent publishes up to a sequence: the owner has accepted them."""
        taken: list[Item] = []
        count = sequence - self._first_sequence + 1
        while self._sent and count > 0:
            item = self._sent.popleft()
            if isinstance(item, Run) and item.count > count:
                item, rest = item.cut(count)
                self._sent.appendleft(rest)
            taken.append(item)
            count -= item.count
            self._first_sequence += item.count
        return taken

    def unanswered(self) -> Iterator[Item]:
        """Yield the items in flight to the owner, and those in doubt."""
        yield from self._sent
        for doubt in self._doubts:
            yield from doubt.publications

    def all(self) -> Iterator[Item]:
        """Yield all that waits, is in flight or in doubt."""
        yield from self._waiting
        yield from self.unanswered()

    def awaits_answer(self, apex: str) -> bool:
        """True if an unanswered publish has a topic within the apex."""
        return any(is_within(t, apex) for item in self.unanswered() for t in topics_of(item))

    def awaited(self, apexes: Collection[str]) -> set[str]:
        """Return the apexes within which an unanswered publish has its topic."""
        found: set[str] = set()
        for item in self.unanswered():
            for topic in topics_of(item):
                apex = deepest_enclosing(topic, apexes)
                while apex and apex not in found:
                    found.add(apex)
                    apex = deepest_enclosing(apex.rpartition("/")[0], apexes)
        return found

    # what is in doubt

    @property
    def doubts(self) -> Sequence[InDoubt]:
        """The publishes that lost links left unanswered, in order."""
        return self._doubts

    def doubt_sent(self, key: MarkKey) -> None:
        """Put all that was sent in the stream `key` in doubt: its link broke."""
        if self._sent:
            sent = tuple(self.take_sent())
            self.add_doubts((InDoubt(key=key, first=self._first_sequence, publications=sent),))

    def add_doubts(self, doubts: Iterable[InDoubt]) -> None:
        """Add doubts behind the others."""
        self._doubts.extend(doubts)
        self._look()

    def take_doubts(self) -> list[InDoubt]:
        """Take all doubts out, in order."""
        doubts, self._doubts = self._doubts, []
        self._look()
        return doubts

    def drop_doubt(self, doubt: InDoubt) -> None:
        """Take one doubt out."""
        self._doubts.remove(doubt)
        self._look()

    def shorten_doubt(self, count: int) -> None:
        """Take the first publishes of the first doubt out: they are kept elsewhere."""
        doubt = self._doubts.pop(0)
        if rest := doubt.publications[count:]:
            self._doubts.insert(
                0, attrs.evolve(doubt, first=doubt.first + count, publications=rest)
            )
        self._look()

    def settle_doubts(
        self, marks: dict[MarkKey, int]
    ) -> tuple[list[Publication], list[Publication]]:
        """
        Take out the doubts whose marks are known; return what was accepted, and what was not.
        """
        accepted: list[Publication] = []
        again: list[Publication] = []
        for doubt in self.take_doubts():
            if doubt.key not in marks:
                self.add_doubts((doubt,))
                continue
            taken = max(marks[doubt.key] - doubt.first + 1, 0)
            accepted.extend(doubt.publications[:taken])
            again.extend(doubt.publications[taken:])
        return accepted, again

    # internal

    def _look(self) -> None:
        self.is_clear = not (
            self._waiting or self._doubts or self._holders or self._is_behind_outbox
        )

    def _count(self, item: Item, sign: int) -> None:
        size = item.size * sign
        self._waiting_size += size
        self._backlog.size += size
        if item.session is not None:
            item.session.held_size += size
        if not item.qos:
            self._qos0_size += size
