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
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import deepest_enclosing, is_filter_within, is_within
from txbroker.model.zone_cut import ZoneCut

QOS0_WAITING = 1024 * 1024
"""Bytes of QoS 0 that wait for one zone's link; beyond that they are dropped and counted."""


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
        """A zone or a cut is new there, or is no more; or what its zone delegates became known."""
        self._apexes[apex] = None

    def note_news(self, route: Route) -> None:
        """There is something to tell its owner."""
        self._news[route] = None

    def take(self) -> list[str]:
        """The apexes since the last call."""
        apexes, self._apexes = self._apexes, {}
        return list(apexes)

    def take_news(self) -> list[Route]:
        """The routes since the last call."""
        news, self._news = self._news, {}
        return list(news)


class RouteState(enum.Enum):
    """Where the connection to the owner stands."""

    IDLE = "idle"  # nobody needed it yet
    CONNECTING = "connecting"  # first attempt since it was needed or lost
    ONLINE = "online"
    UNREACHABLE = "unreachable"  # the last attempt failed; more follow


class Draining(Protocol):
    """What an outbox has for one owner, as the route there sees it."""

    @property
    def is_busy(self) -> bool:
        """True if entries may be left for it."""


class WaitingBytes:
    """Bytes that wait in all routes of an edge together."""

    def __init__(self) -> None:
        self.size = 0


class Route:
    """The way to the zone `apex`; `cut` says where, None while nobody told."""

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
        self.over = -1  # epoch of which its heir has said that it is, and where the zone goes on
        self.waiting: deque[Item] = deque()
        self.waiting_size = 0
        self.qos0_size = 0
        self.sent: deque[Item] = deque()
        self.first_sequence = 1
        self.doubts: list[InDoubt] = []
        self.held_by: set[Route] = set()  # earlier owners, until each has answered for its topics
        self.filters: set[str] = set()
        self.claims: set[str] = set()
        self.claiming: dict[str, StreamPosition | None] = {}
        self.completing: list[str] = []  # claims whose end is told when it is durable
        self.read: set[str] = set()
        self.reclaimed: dict[
            str, StreamPosition
        ] = {}  # apexes, and since when they are this zone's
        self._has_news = False
        self.has_marks = False  # its owner may have journals that sessions here need
        self.hope_until = 0.0
        self.failures = 0
        self.requests: dict[int, tuple[str, object]] = {}  # filters, and who asks
        self.position: StreamPosition | None = None
        self.began: StreamPosition | None = None
        self.predecessor: tuple[int, LogPosition | None] = (0, None)  # of the epoch's part
        self.drains: Sequence[Draining] = ()
        self.is_behind_outbox = False  # what waits came later than what drains bring

    @property
    def cuts(self) -> CutMap | None:
        """All cuts of the zone; None while nobody told."""
        return self._cuts

    @cuts.setter
    def cuts(self, cuts: Mapping[str, ZoneCut] | None) -> None:
        if self._cuts is not None and cuts is not None:
            self._cuts.replace(cuts)
            return
        if self._cuts is not cuts:
            self._changes.note(self.apex)  # what stands for all below does so no more, or does now
        self._cuts = None if cuts is None else CutMap(cuts, self._changes)

    @property
    def has_news(self) -> bool:
        """True if its owner is to hear of filters and claims, though the filters are the same."""
        return self._has_news

    @has_news.setter
    def has_news(self, has_news: bool) -> None:
        self._has_news = has_news
        if has_news:
            self._changes.note_news(self)

    @property
    def epoch(self) -> int:
        """Of the delegation that this route believes in; 0: none known."""
        return self.cut.epoch if self.cut is not None else 0

    @property
    def part(self) -> JournalId:
        """The part of the zone's journal that its stream comes from."""
        epoch = self.epoch if self.position is None else self.position.epoch
        if self._part.epoch != epoch:
            self._part = JournalId(self.apex, epoch)
        return self._part

    def begins_behind(self, part: JournalId) -> int | None:
        """The offset of a part behind which it has none of this zone's topics, where it is told."""
        epoch, place = self.predecessor
        if place is None or epoch != self.epoch or place.part != part:
            return None
        return place.offset

    @property
    def is_over(self) -> bool:
        """Whether what is followed here is over, and read to its end."""
        return self.over >= self.part.epoch

    @property
    def is_needed(self) -> bool:
        """Whether anything waits for a connection to the owner."""
        is_wanted = self.waiting or self.filters or self.doubts or self.requests
        return bool(is_wanted or self.has_marks or self.is_draining)

    @property
    def is_clear(self) -> bool:
        """Whether a publish of QoS 0 for it waits behind nothing, and what it brings is live."""
        is_behind = self.waiting or self.doubts or self.held_by or self.is_behind_outbox
        return not (is_behind or self.read)

    @property
    def is_draining(self) -> bool:
        """Whether an outbox has something for its owner."""
        return bool(self.drains) and any(drain.is_busy for drain in self.drains)

    @property
    def is_away(self) -> bool:
        """Whether it counts as unreachable."""
        return self.state is RouteState.UNREACHABLE and self.port is None

    def has_confirmed(self, topic_filter: str) -> bool:
        """Whether the owner was told that the filter is wanted here, and owes no answer to that."""
        return topic_filter in self.filters and all(
            topic_filter != asked for asked, _ in self.requests.values()
        )

    def claim(self, apex: str, *, is_read: bool = False) -> None:
        """
        Nothing of an earlier owner of the apex is on its way to us any more.

        `is_read`: every session reads what waited for the claim from the journal.
        """
        self.has_news = True
        self.claims.add(apex)
        self.claiming[apex] = None
        if is_read:
            self.read.add(apex)

    @property
    def sayable_claims(self) -> set[str]:
        """
        What the owner may be told of as claimed now.

        Not what is claimed anew while the end of the claim before waits for the disk: the owner
        would take it for that one, and for the apex as done with when it hears of its end.
        """
        return self.claims - (set(self.completing) & self.claiming.keys())

    def withdraw_claims(self, apex: str) -> None:
        """The apex is another zone's, with all claims within."""
        self.claims = {claimed for claimed in self.claims if not is_within(claimed, apex)}
        self.claiming = {a: p for a, p in self.claiming.items() if a in self.claims}
        self.read &= self.claims
        self.reclaimed = {a: p for a, p in self.reclaimed.items() if not is_within(a, apex)}

    def processed(self, apex: str) -> StreamPosition | None:
        """
        How far deliveries of a claimed apex are processed.

        While what waited for the claim still comes, that is behind `position`: what is live may
        have gone far ahead before the claim.
        """
        return self.claiming.get(apex, self.position)

    def note_processed(self, topic: str, position: StreamPosition) -> None:
        """A delivery was processed."""
        for apex in self.claiming:
            if is_within(topic, apex):
                self.claiming[apex] = position

    def since(self, topic_filter: str) -> int:
        """The offset up to which the present part has nothing that is owed for the filter."""
        return max(
            (
                after.offset
                for apex, after in self.reclaimed.items()
                if after.epoch == self.part.epoch and is_filter_within(topic_filter, apex)
            ),
            default=0,
        )

    def complete_claims(self, apexes: Iterable[str]) -> None:
        """All that waited for these claims is processed."""
        for apex in apexes:
            self.claiming.pop(apex, None)
            self.read.discard(apex)

    def is_read(self, topic: str, offset: int) -> bool:
        """
        Whether a delivery that waited for a claim is none: who was here reads it from the journal,
        and who came since has begun behind it.
        """
        position = self.position
        return (
            position is not None
            and 0 < offset <= position.offset
            and any(is_within(topic, apex) for apex in self.read)
        )

    def wait(self, item: Item) -> None:
        """Queue it behind what waits already."""
        self.waiting.append(item)
        self._count(item, 1)

    def wait_first(self, items: Sequence[Item]) -> None:
        """Queue them, in their order, before all that waits."""
        for item in reversed(items):
            self.waiting.appendleft(item)
            self._count(item, 1)

    def next_waiting(self) -> Item:
        """Take the first one that waits."""
        item = self.waiting.popleft()
        self._count(item, -1)
        return item

    def take_waiting(self) -> list[Publication]:
        """Take all that waits, in order, each by itself."""
        return unfold([self.next_waiting() for _ in range(len(self.waiting))])

    def unfold_waiting(self) -> Sequence[Publication]:
        """All that waits, each by itself, where it is."""
        if any(not isinstance(item, Publication) for item in self.waiting):
            self.wait_first(self.take_waiting())
        return [item for item in self.waiting if isinstance(item, Publication)]

    def drop_waiting_qos0(self) -> int:
        """Forget the QoS 0 ones that wait; returns how many."""
        dropped = sum(item.count for item in self.waiting if not item.qos)
        if dropped:
            items = [self.next_waiting() for _ in range(len(self.waiting))]
            self.wait_first([item for item in items if item.qos])
        return dropped

    def take_sent(self) -> list[Publication]:
        """Take all that was sent and is not answered, each by itself."""
        sent, self.sent = self.sent, deque()
        return unfold(sent)

    def unanswered(self) -> Iterator[Item]:
        """Those on their way to the owner, and those in doubt."""
        yield from self.sent
        for doubt in self.doubts:
            yield from doubt.publications

    def awaits_answer(self, apex: str) -> bool:
        """Whether one of them has a topic within the apex."""
        return any(is_within(t, apex) for item in self.unanswered() for t in topics_of(item))

    def awaited(self, apexes: Collection[str]) -> set[str]:
        """Those of the apexes within which one of them has its topic."""
        found: set[str] = set()
        for item in self.unanswered():
            for topic in topics_of(item):
                apex = deepest_enclosing(topic, apexes)
                while apex and apex not in found:
                    found.add(apex)
                    apex = deepest_enclosing(apex.rpartition("/")[0], apexes)
        return found

    def take_sent_through(self, sequence: int) -> list[Item]:
        """The sent ones up to a sequence: the owner has them."""
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
