"""
One zone as this edge sees it: where its owner is, what waits for it, what is on its way.

A route's publishes pass through three places, in this order and never back in another: `waiting`
(not sent), `sent` (numbered, not answered), and, where a link broke under them, `doubts` (sent
once; the owner is asked for its mark before any of them is sent again, protocol rule 2). QoS 0 is
neither numbered nor kept once it was sent. Where the owner cannot be reached, QoS 1 and 2 leave
them for an outbox; what `drains` bring from there is sent beside the rest.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from txbroker.core import Run
from txbroker.edge.routing.cut_map import CutMap
from txbroker.edge.routing.owner_port import OwnerPort
from txbroker.edge.routing.publication import InDoubt, Item, Publication, topics_of, unfold
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import deepest_enclosing, is_filter_within, is_within
from txbroker.model.zone_cut import ZoneCut

QOS0_WAITING = 1024 * 1024
"""Bytes of QoS 0 that may wait for one zone's link; the excess is dropped and counted."""


@attrs.frozen(kw_only=True)
class StreamPosition:
    """The last delivery of QoS 1 or 2 that was processed."""

    epoch: int
    offset: int


class CutChanges:
    """
    Apexes at which a zone or a cut came or went, and routes whose owners are to hear more than
    that, each once, until they are taken.
    """

    def __init__(self) -> None:
        self._apexes: dict[str, None] = {}
        self._news: dict[Route, None] = {}

    def note(self, apex: str) -> None:
        """
        Note that a zone or a cut came or went at the apex, or that the zone's cuts became known.
        """
        self._apexes[apex] = None

    def note_news(self, route: Route) -> None:
        """Note a route whose owner has to hear of filters or claims."""
        self._news[route] = None

    def take(self) -> list[str]:
        """Return the apexes noted since the last call."""
        apexes, self._apexes = self._apexes, {}
        return list(apexes)

    def take_news(self) -> list[Route]:
        """Return the routes noted since the last call."""
        news, self._news = self._news, {}
        return list(news)


class RouteState(enum.Enum):
    """Where the connection to the owner stands."""

    IDLE = "idle"  # no publish, filter or mark has needed the link yet
    CONNECTING = "connecting"  # first attempt since the link was needed or lost
    ONLINE = "online"
    UNREACHABLE = "unreachable"  # the last attempt failed; more follow


class Draining(Protocol):
    """What an outbox has for one owner, as the route there sees it."""

    @property
    def is_busy(self) -> bool:
        """True if entries for the owner may be left."""


class WaitingBytes:
    """Bytes that wait in all routes of an edge together."""

    def __init__(self) -> None:
        self.size = 0


class Route:
    """
    The way to the zone `apex`; `cut` says where, None while nobody told.

    Invariant: a route is online where it has a port. Only then something is in `sent`.
    Invariant: read and claiming <= claims; each size is the sum of what waits.
    """

    def __init__(
        self, apex: str, cut: ZoneCut | None, backlog: WaitingBytes, changes: CutChanges
    ) -> None:
        self.apex = apex
        self._part = JournalId(apex, 0)
        self._backlog = backlog
        self._changes = changes
        self.cut = cut
        self._cuts: CutMap | None = None
        self.fresh_until = 0.0
        self.state = RouteState.IDLE
        self.unreachable_since: float | None = None
        self.resolving = False
        self.port: OwnerPort | None = None
        self.is_local = False
        self.is_ending = False
        # the last epoch whose end its heir has announced, with the part that continues it
        self.over = -1
        self.waiting: deque[Item] = deque()
        self.waiting_size = 0
        self.qos0_size = 0
        self.sent: deque[Item] = deque()
        self.first_sequence = 1
        self.doubts: list[InDoubt] = []
        # earlier owners that have still to answer for topics of this zone
        self.held_by: set[Route] = set()
        self.filters: set[str] = set()
        self.claims: set[str] = set()
        self.claiming: dict[str, StreamPosition | None] = {}
        # completed claims whose end is not durable yet, so the owner has not heard of it
        self.completing: list[str] = []
        self.read: set[str] = set()
        self.reclaimed: dict[
            str, StreamPosition
        ] = {}  # apexes, and the position since which they are this zone's
        self._has_news = False
        self.has_marks = False  # the owner may have journals that sessions here need
        self.hope_until = 0.0
        self.failures = 0
        # request: its filter and the SUBSCRIBE that asks
        self.requests: dict[int, tuple[str, object]] = {}
        self.position: StreamPosition | None = None
        self.began: StreamPosition | None = None
        # epoch, and where that epoch's part begins
        self.predecessor: tuple[int, LogPosition | None] = (0, None)
        self.drains: Sequence[Draining] = ()
        self.is_behind_outbox = False  # the waiting publishes are later than entries in the drains

    def check(self) -> None:
        """State where the route's publishes may be; after the end of a turn."""
        is_online = self.state is RouteState.ONLINE
        is_one = is_online == (self.port is not None)
        holds(self, 2, "a route is online with a port", is_one, self.apex, self.state)
        is_fitting = self.port is not None or not self.sent
        holds(self, 2, "nothing is sent without a link", is_fitting, self.apex, len(self.sent))
        holds(self, 5, "QoS 0 is not kept", all(item.qos for item in self.sent), self.apex)
        ordered(self, 1, "sequences begin at 1", 1, self.first_sequence)
        for doubt in self.doubts:
            ordered(self, 2, "a doubt has its publishes", doubt.first, doubt.last)
        size = sum(item.size for item in self.waiting)
        is_counted = size == self.waiting_size
        holds(self, 34, "waiting bytes are counted", is_counted, self.apex, size, self.waiting_size)
        qos0 = sum(item.size for item in self.waiting if not item.qos)
        holds(self, 34, "bytes of QoS 0 are counted", qos0 == self.qos0_size, self.apex, qos0)
        strange = (self.read | self.claiming.keys()) - self.claims
        holds(self, 13, "only what is claimed is awaited", not strange, self.apex, strange)
        holds(self, 13, "a route does not wait for itself", self not in self.held_by, self.apex)
        is_own = self.cut is None or self.cut.apex == self.apex
        holds(self, 14, "a route leads to its zone", is_own, self.apex, self.cut)

    @property
    def cuts(self) -> CutMap | None:
        """All cuts of the zone; None while no owner or resolver has listed them."""
        return self._cuts

    @cuts.setter
    def cuts(self, cuts: Mapping[str, ZoneCut] | None) -> None:
        if self._cuts is not None and cuts is not None:
            self._cuts.replace(cuts)
            return
        if self._cuts is not cuts:
            # While cuts are unknown this route stands for all zones below: filters have to move.
            self._changes.note(self.apex)
        self._cuts = None if cuts is None else CutMap(cuts, self._changes)

    @property
    def has_news(self) -> bool:
        """True if the owner has to hear of claims or filters, even if the filters are the same."""
        return self._has_news

    @has_news.setter
    def has_news(self, has_news: bool) -> None:
        self._has_news = has_news
        if has_news:
            self._changes.note_news(self)

    @property
    def epoch(self) -> int:
        """Epoch of the delegation that this route trusts; 0: none known."""
        return self.cut.epoch if self.cut is not None else 0

    @property
    def part(self) -> JournalId:
        """The part of the zone's journal that its stream delivers."""
        epoch = self.epoch if self.position is None else self.position.epoch
        if self._part.epoch != epoch:
            self._part = JournalId(self.apex, epoch)
        return self._part

    def begins_behind(self, part: JournalId) -> int | None:
        """
        Return the offset of `part` behind which it has no topics of this zone; None if unknown.
        """
        epoch, place = self.predecessor
        if place is None or epoch != self.epoch or place.part != part:
            return None
        return place.offset

    @property
    def is_over(self) -> bool:
        """
        True if the part that is followed has ended, and sessions read its rest from the journal.
        """
        return self.over >= self.part.epoch

    @property
    def is_needed(self) -> bool:
        """True if a publish, filter, mark or drain needs a connection to the owner."""
        is_wanted = self.waiting or self.filters or self.doubts or self.requests
        return bool(is_wanted or self.has_marks or self.is_draining)

    @property
    def is_clear(self) -> bool:
        """True if a QoS 0 publish has nothing to wait for, and its deliveries are live."""
        is_behind = self.waiting or self.doubts or self.held_by or self.is_behind_outbox
        return not (is_behind or self.read)

    @property
    def is_draining(self) -> bool:
        """True if an outbox has entries for the owner."""
        return bool(self.drains) and any(drain.is_busy for drain in self.drains)

    @property
    def is_away(self) -> bool:
        """True if the owner counts as unreachable."""
        return self.state is RouteState.UNREACHABLE and self.port is None

    def has_confirmed(self, topic_filter: str) -> bool:
        """True if the owner was sent the filter, and owes no answer for it."""
        return topic_filter in self.filters and all(
            topic_filter != asked for asked, _ in self.requests.values()
        )

    def claim(self, apex: str, *, is_read: bool = False) -> None:
        """
        Claim the apex: all deliveries of its earlier owner to this edge have arrived.

        `is_read`: every session reads the deliveries that waited for the claim from the journal.
        """
        self.has_news = True
        self.claims.add(apex)
        self.claiming[apex] = None
        if is_read:
            self.read.add(apex)

    @property
    def sayable_claims(self) -> set[str]:
        """
        The claims that may be sent to the owner now.

        An apex may be claimed anew while the end of its earlier claim is not durable yet. Such a
        claim is left out: the owner would take it for the earlier one, and end both at once.
        """
        return self.claims - (set(self.completing) & self.claiming.keys())

    def withdraw_claims(self, apex: str) -> None:
        """Drop all claims within the apex, which is another zone's now."""
        self.claims = {claimed for claimed in self.claims if not is_within(claimed, apex)}
        self.claiming = {a: p for a, p in self.claiming.items() if a in self.claims}
        self.read &= self.claims
        self.reclaimed = {a: p for a, p in self.reclaimed.items() if not is_within(a, apex)}

    def processed(self, apex: str) -> StreamPosition | None:
        """
        Return the position up to which deliveries of a claimed apex are processed.

        While deliveries that waited for the claim still come, this is behind `position`: live
        deliveries may have gone far ahead before the claim.
        """
        return self.claiming.get(apex, self.position)

    def note_processed(self, topic: str, position: StreamPosition) -> None:
        """Note that a delivery was processed."""
        for apex in self.claiming:
            if is_within(topic, apex):
                self.claiming[apex] = position

    def since(self, topic_filter: str) -> int:
        """
        Return the offset up to which the present part has no record that is owed for the filter.
        """
        return max(
            (
                after.offset
                for apex, after in self.reclaimed.items()
                if after.epoch == self.part.epoch and is_filter_within(topic_filter, apex)
            ),
            default=0,
        )

    def complete_claims(self, apexes: Iterable[str]) -> None:
        """Complete claims: all deliveries that waited for them are processed."""
        for apex in apexes:
            self.claiming.pop(apex, None)
            self.read.discard(apex)

    def is_read(self, topic: str, offset: int) -> bool:
        """
        True if a delivery that waited for a claim has to be ignored.

        Sessions that were here read it from the journal; newer ones began behind it.
        """
        position = self.position
        return (
            position is not None
            and 0 < offset <= position.offset
            and any(is_within(topic, apex) for apex in self.read)
        )

    def wait(self, item: Item) -> None:
        """Queue an item behind all that waits."""
        self.waiting.append(item)
        self._count(item, 1)

    def wait_first(self, items: Sequence[Item]) -> None:
        """Queue items, in their order, before all that waits."""
        for item in reversed(items):
            self.waiting.appendleft(item)
            self._count(item, 1)

    def next_waiting(self) -> Item:
        """Dequeue the first item that waits."""
        item = self.waiting.popleft()
        self._count(item, -1)
        return item

    def take_waiting(self) -> list[Publication]:
        """Dequeue all that waits, in order, each publish by itself."""
        return unfold([self.next_waiting() for _ in range(len(self.waiting))])

    def unfold_waiting(self) -> Sequence[Publication]:
        """Split the waiting runs into publishes, in place; return these."""
        if any(not isinstance(item, Publication) for item in self.waiting):
            self.wait_first(self.take_waiting())
        return [item for item in self.waiting if isinstance(item, Publication)]

    def drop_waiting_qos0(self) -> int:
        """Drop the waiting QoS 0 publishes; return how many."""
        dropped = sum(item.count for item in self.waiting if not item.qos)
        if dropped:
            items = [self.next_waiting() for _ in range(len(self.waiting))]
            self.wait_first([item for item in items if item.qos])
        return dropped

    def take_sent(self) -> list[Publication]:
        """Dequeue all that was sent and is not answered, each publish by itself."""
        sent, self.sent = self.sent, deque()
        return unfold(sent)

    def unanswered(self) -> Iterator[Item]:
        """Yield the items in flight to the owner, and those in doubt."""
        yield from self.sent
        for doubt in self.doubts:
            yield from doubt.publications

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

    def take_sent_through(self, sequence: int) -> list[Item]:
        """Dequeue the sent publishes up to a sequence: the owner has accepted them."""
        taken: list[Item] = []
        count = sequence - self.first_sequence + 1
        while self.sent and count > 0:
            item = self.sent.popleft()
            if isinstance(item, Run) and item.count > count:
                item, rest = item.cut(count)
                self.sent.appendleft(rest)
            taken.append(item)
            count -= item.count
            self.first_sequence += item.count
        return taken

    def _count(self, item: Item, sign: int) -> None:
        size = item.size * sign
        self.waiting_size += size
        self._backlog.size += size
        if item.session is not None:
            item.session.held_size += size
        if not item.qos:
            self.qos0_size += size
