"""
The registry of a zone's edges: their links, positions, claims and interests.

An edge passes these states; live delivery is the `Authority`'s:

- `expect`: a new link replaces the edge's earlier link, so the marks in the answer are final.
- `connect`: once earlier publishes are durable, the edge is connected and reads its catch-up.
- `sync`, `on_claimed`: a connected edge changes its interest, claims a subtree, and ends the claim.
- `disconnect`: the edge is away; its interest stays, so that the edge can resume.
- `forget`: a command removed the edge from the members.

An edge that reconnects may be behind. An inherited subtree must be claimed before the edge gets its
records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

import attrs

from txbroker.authority.accepted_wills import AcceptedWills
from txbroker.authority.edge_peer import (
    EdgeCatchUp,
    EdgeGreeting,
    EdgePeer,
    EdgePort,
    ParkedInterest,
    ReturnedZone,
)
from txbroker.authority.edge_peers import EdgePeers
from txbroker.authority.held_history import HeldHistory
from txbroker.authority.retained_messages import RetainedMessages
from txbroker.authority.zone_scope import ZoneScope
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.zone_journal import JournalChunk, Record, ZoneJournal
from txbroker.model.log_position import JournalHolder, JournalId
from txbroker.mqtt.wire.message import Message

MARKS = 100_000
"""The most duplicate marks of streams in one zone; beyond that no new stream may begin."""


class ServedZone(Protocol):
    """The registry's port to the authority."""

    @property
    def apex(self) -> str:
        """Return the zone's topmost prefix."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the zone's present grant."""

    @property
    def marks(self) -> dict[MarkKey, int]:
        """Return the mark of each publish stream."""

    @property
    def wills(self) -> AcceptedWills:
        """Return the accepted wills; each has a mark too."""

    @property
    def retained(self) -> RetainedMessages:
        """Return the messages that the zone retains."""

    @property
    def held(self) -> HeldHistory:
        """Return what the zone holds for first subscribers."""

    @property
    def peers(self) -> EdgePeers:
        """Return the edges and their interests."""

    @property
    def delivered(self) -> int:
        """Return the offset of the last durable record that was delivered to the edges."""

    @property
    def is_settled(self) -> bool:
        """True if all accepted publishes are durable and delivered."""

    def in_order(self, action: Callable[[], None]) -> None:
        """Run the action when all publishes accepted before it are durable and delivered."""


class EdgeRegistry:
    """The edges of one authority, stored in its `EdgePeers`."""

    def __init__(
        self,
        authority: ServedZone,
        table: DelegationTable,
        journal: ZoneJournal,
        zone_scope: ZoneScope,
    ) -> None:
        self._authority = authority
        self._peers = authority.peers
        self._table = table
        self._journal = journal
        self._zone_scope = zone_scope

    # an edge's link opens and closes

    def begin(self, key: MarkKey) -> bool:
        """
        Give the stream a mark, unless it has one; return False if there is no room for another.

        Streams that have not published yet count too. Otherwise those that began before the limit
        was reached would pass it.
        """
        if not self.may_begin((key,)):
            return False
        self._authority.marks.setdefault(key, 0)
        return True

    def may_begin(self, keys: Iterable[MarkKey], *, is_anew: bool = False) -> bool:
        """
        True if each stream has a mark, or the zone has room for all others (protocol rule 4).

        `is_anew`: the zone's own marks are about to go.
        """
        marks, wills = self._authority.marks, self._authority.wills
        if is_anew:
            return sum(1 for _ in keys) <= MARKS
        new = sum(key not in marks for key in keys)
        return not new or len(marks) - len(wills) + new <= MARKS

    def may_come(self, edges: Collection[str]) -> bool:
        """
        True if the zone has room for these edges.

        Only low-water marks count: these are of all connected edges. An edge that is known and was
        not heard for too long comes as a new edge.
        """
        return self._journal.has_room_for(edges)

    def forget(self, edge: str) -> None:
        """Forget an edge that a command removed from the members, with its marks."""
        peer = self._peers.get(edge)
        if peer is not None and peer.port is not None:
            return  # a connected edge lives and reports its needs itself
        if peer is not None:
            self._peers.forget(peer)
        marks = self._authority.marks
        for key in [key for key in marks if key[0] == edge]:
            del marks[key]
        self._journal.forget_edge(edge)

    def expect(self, greeting: EdgeGreeting) -> bool:
        """
        Close the edge's earlier link, as the edge will `connect` once earlier publishes are
        durable.

        Return False if a newer link is known. The earlier link accepts no more publishes, so the
        marks in the answer are final.
        """
        peer = self._peers.get(greeting.edge)
        if peer is None:
            return True
        if greeting.is_late(peer):
            return False
        peer.disconnect("a newer link of this edge took over")
        return True

    def connect(
        self, greeting: EdgeGreeting, port: EdgePort
    ) -> tuple[EdgePeer, EdgeCatchUp] | None:
        """
        Connect an edge, whose interest replaces the known one; return its peer and catch-up.

        None: a newer link or incarnation of the edge is known, and the caller must close this link.
        """
        if not self.expect(greeting):
            return None
        peer = self._peers.admit(greeting.edge, greeting.incarnation)
        peer.port, peer.stream, peer.opened = port, greeting.stream, greeting.opened
        peer.has_come = True
        peer.wants_publishers = greeting.wants_publishers
        marks, apex = self._authority.marks, self._authority.apex
        for key in [key for key in marks if greeting.closes(key, apex)]:
            del marks[key]
        self._peers.replace_filters(peer, greeting.filters, self._unheard(peer, greeting.claims))
        with self._noting_claims(peer):
            claimed = peer.claim(greeting)
        catch_up = self._catch_up(claimed, greeting.position)
        start = self._authority.delivered if catch_up.after is None else catch_up.after
        self._journal.add_edge(peer.edge, start)
        return peer, catch_up

    def returned(self, greeting: EdgeGreeting) -> list[ReturnedZone]:
        """Return the apexes that came back here and that the edge may not know of."""
        reclaimed = self._table.reclaimed_at()
        return [
            ReturnedZone(
                apex=apex,
                epoch=self._table.epoch_of(apex) - 1,
                offset=offset,
                is_inherited=apex not in reclaimed,
            )
            for apex, offset in self._peers.unclaimed_of(greeting.edge).items()
            if greeting.is_before(apex, offset)
            and apex != self._authority.apex
            and self._table.get(apex) is None
        ]

    def disconnect(self, peer: EdgePeer, port: EdgePort) -> None:
        """Note that the edge's link is closed; the interest stays, so that the edge can resume."""
        if peer.port is port:
            peer.port = None

    # catch-up of an edge

    def sync(
        self, peer: EdgePeer, filters: Iterable[str], claims: Mapping[str, int | None]
    ) -> EdgeCatchUp:
        """Replace a connected edge's interest; the returned catch-up of its claims goes first."""
        with self._noting_claims(peer):
            catch_up = self._catch_up(peer.claim_more(claims), None)
        self._peers.replace_filters(peer, filters, self._unheard(peer))
        completes = tuple(sorted(apex for apex in claims if apex not in peer.unclaimed))
        return attrs.evolve(catch_up, completes=completes)

    def on_claimed(self, peer: EdgePeer, apexes: Iterable[str]) -> None:
        """End claims that the edge has processed: their apexes are live, or resume, from here."""
        with self._noting_claims(peer):
            peer.forget_claims(apexes)

    def backlog(
        self, peer: EdgePeer, catch_up: EdgeCatchUp, after: int, through: int
    ) -> tuple[JournalChunk, list[Record]]:
        """Return the next chunk of a catch-up, and the chunk's records that the edge gets."""
        chunk = self._journal.read(after, through)
        due = [record for record in chunk.records if catch_up.has(record)]
        return chunk, self._peers.wanted_records(peer, due)

    def set_low_water(
        self,
        peer: EdgePeer,
        places: dict[JournalId, int],
        kept: Callable[[], None],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]] = MappingProxyType({}),
    ) -> None:
        """
        Store the edge's low-water marks: its sessions and open claims need records above them.

        `kept` runs when the marks are durable. A standing fence suppresses `kept`: the zone may
        have moved with its earlier marks already.
        """
        authority, claims = self._authority, peer.open_claims().values()
        if claims:
            part = JournalId(authority.apex, authority.epoch)
            places = {**places, part: min(*claims, places.get(part, authority.delivered))}
        self._journal.set_low_water(peer.edge, places, holders)
        if not self._zone_scope.is_fenced:
            self._journal.when_kept(kept)

    # interest of an edge

    def add_interest(self, peer: EdgePeer, topic_filter: str, request: int, retained: bool) -> None:
        """Add a filter and queue the answer in the edge's stream; a fence parks the request."""
        port = peer.port
        if self._zone_scope.is_fenced and self._zone_scope.park(
            ParkedInterest(peer, port, topic_filter, request, retained)
        ):
            return
        self._peers.add_filter(peer, topic_filter)
        if port is not None:
            self._authority.in_order(
                lambda: self._answer(peer, port, topic_filter, request, retained)
            )

    def add_interest_now(
        self, peer: EdgePeer, topic_filter: str
    ) -> Iterator[Message | None] | None:
        """Add a filter and return its retained messages at once; None if an answer must wait."""
        authority = self._authority
        if self._zone_scope.is_fenced or not authority.is_settled:
            return None
        if authority.held.has_for(topic_filter):
            return None
        self._peers.add_filter(peer, topic_filter)
        return authority.retained.walk(topic_filter)

    def remove_interest(self, peer: EdgePeer, topic_filter: str) -> None:
        """Remove a filter that the edge's last client has left."""
        self._zone_scope.withdraw(peer, topic_filter)
        self._peers.remove_filter(peer, topic_filter)

    # internal

    def _unheard(self, peer: EdgePeer, claims: Iterable[str] = ()) -> set[str]:
        """
        Return the returned apexes that the edge has not claimed and does not claim now.

        An apex that was delegated again is left out: it took the edge's interest along.
        """
        unclaimed = peer.unclaimed.keys() - set(claims)
        return {apex for apex in unclaimed if self._table.lookup(apex) is None}

    @contextmanager
    def _noting_claims(self, peer: EdgePeer) -> Iterator[None]:
        before = peer.open_claims()
        yield
        if peer.open_claims() != before:
            self._journal.store_unclaimed((peer.edge,))

    def _catch_up(self, claimed: dict[str, int], position: int | None) -> EdgeCatchUp:
        starts = list(claimed.values()) + ([] if position is None else [position])
        if not starts or min(starts) >= self._authority.delivered:
            return EdgeCatchUp()
        after = min(starts)
        missed = self._journal.read(after, after).missed(after)
        return EdgeCatchUp(after=after, claimed=claimed, resumed=position, missed=missed)

    def _answer(
        self, peer: EdgePeer, port: EdgePort, topic_filter: str, request: int, retained: bool
    ) -> None:
        if peer.port is port:
            authority = self._authority
            asked = authority.retained.query(topic_filter) if retained else None
            asked = authority.held.take(topic_filter, asked)
            port.confirm_interest(request, authority.delivered, asked)
