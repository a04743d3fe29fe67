"""
How the edges of a zone come, resume and leave, and what each of them wants.

An edge may be behind, and it may have inherited what another node served when it was here last:
that it has to claim before it gets anything of it. What is sent to it live is the `Authority`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from txbroker.authority.retained_messages import RetainedMessages
from txbroker.authority.zone_scope import ZoneScope
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.zone_journal import JournalChunk, Record, ZoneJournal
from txbroker.model.log_position import JournalHolder, JournalId
from txbroker.mqtt.wire.message import Message

MARKS = 100_000
"""Duplicate marks of streams in one zone; beyond that no stream begins that has none."""


class ServedZone(Protocol):
    """The authority, as the registry of its edges sees it."""

    @property
    def apex(self) -> str:
        """The zone's topmost prefix."""

    @property
    def epoch(self) -> int:
        """Of the grant that it is served by."""

    @property
    def marks(self) -> dict[MarkKey, int]:
        """How far each stream was taken."""

    @property
    def wills(self) -> AcceptedWills:
        """The wills that were taken; each has a mark, too."""

    @property
    def retained(self) -> RetainedMessages:
        """The messages that the zone retains."""

    @property
    def peers(self) -> EdgePeers:
        """The edges, with what each one wants."""

    @property
    def delivered(self) -> int:
        """The offset of the last durable record that was given to the edges."""

    @property
    def is_settled(self) -> bool:
        """True if everything that was taken is durable and delivered."""

    def forget(self, port: EdgePort) -> None:
        """The port is gone: nothing is told it any more."""

    def in_order(self, action: Callable[[], None]) -> None:
        """Run it when everything that was taken before it is durable and delivered."""


class EdgeRegistry:
    """Of the edges of one authority, whose `EdgePeers` know them."""

    def __init__(
        self,
        authority: ServedZone,
        table: DelegationTable,
        journal: ZoneJournal,
        bailiwick: ZoneScope,
    ) -> None:
        self._authority = authority
        self._peers = authority.peers
        self._table = table
        self._journal = journal
        self._bailiwick = bailiwick

    # a link of an edge comes and goes

    def may_begin(self, key: MarkKey) -> bool:
        """True if a stream has its mark, or there is room for another one (protocol rule 4)."""
        marks, wills = self._authority.marks, self._authority.wills
        return key in marks or len(marks) - len(wills) < MARKS

    def may_come(self, edge: str) -> bool:
        """True if the edge is known, or there is room for another one."""
        return self._peers.get(edge) is not None or self._journal.has_room_for(edge)

    def forget(self, edge: str) -> None:
        """The edge is a member of the tree no longer, by command: nothing is kept for it."""
        peer = self._peers.get(edge)
        if peer is not None and peer.port is not None:
            return  # it lives, and says itself what it needs
        if peer is not None:
            self._peers.forget(peer)
        marks = self._authority.marks
        for key in [key for key in marks if key[0] == edge]:
            del marks[key]
        self._journal.forget_edge(edge)

    def expect(self, greeting: EdgeGreeting) -> bool:
        """
        An edge will `connect` when what was taken before is durable; False: it has begun anew.

        Nothing more is taken by an earlier link of it: the marks that it is told are its last ones.
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
        An edge is here; its interest replaces what was known of it.

        None: a newer link or incarnation of the edge is known, this one is to be closed.
        """
        if not self.expect(greeting):
            return None
        peer = self._peers.admit(greeting.edge, greeting.incarnation)
        peer.port, peer.stream, peer.opened = port, greeting.stream, greeting.opened
        peer.has_come = True
        marks, apex = self._authority.marks, self._authority.apex
        for key in [key for key in marks if greeting.closes(key, apex)]:
            del marks[key]
        self._peers.replace_filters(peer, greeting.filters, self._unheard(peer, greeting.claims))
        with self._noting_claims(peer):
            claimed = peer.claim(greeting)
        catch_up = self._catch_up(claimed, greeting.position)
        start = self._authority.delivered if catch_up.after is None else catch_up.after
        self._journal.note_edge(peer.edge, start)
        return peer, catch_up

    def returned(self, greeting: EdgeGreeting) -> list[ReturnedZone]:
        """Apexes that came back here, and that the edge may not know of."""
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
        """The edge's link is gone; its interest stays, so that it can resume."""
        self._authority.forget(port)
        if peer.port is port:
            peer.port = None

    # what an edge is behind with

    def sync(
        self, peer: EdgePeer, filters: Iterable[str], claims: Mapping[str, int | None]
    ) -> EdgeCatchUp:
        """Replace a connected edge's interest; what it claims is to be sent first."""
        with self._noting_claims(peer):
            catch_up = self._catch_up(peer.claim_more(claims), None)
        self._peers.replace_filters(peer, filters, self._unheard(peer))
        completes = tuple(sorted(apex for apex in claims if apex not in peer.unclaimed))
        return attrs.evolve(catch_up, completes=completes)

    def on_claimed(self, peer: EdgePeer, apexes: Iterable[str]) -> None:
        """The edge has processed what waited for its claims: all is live, or resumes, from here."""
        with self._noting_claims(peer):
            peer.forget_claims(apexes)

    def backlog(
        self, peer: EdgePeer, catch_up: EdgeCatchUp, after: int, through: int
    ) -> tuple[JournalChunk, list[Record]]:
        """The next chunk of a catch-up, and what of it the edge gets."""
        chunk = self._journal.read(after, through)
        due = [record for record in chunk.records if catch_up.has(record)]
        return chunk, self._peers.wanted(peer, due)

    def keep(
        self,
        peer: EdgePeer,
        places: dict[JournalId, int],
        kept: Callable[[], None],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]] = MappingProxyType({}),
    ) -> None:
        """
        What the edge's sessions need lies above these offsets, and what it is still to claim.

        `kept` is called when that is durable; not while a fence is up: the marks may have gone with
        the zone by then, as they were before.
        """
        authority, claims = self._authority, peer.open_claims().values()
        if claims:
            part = JournalId(authority.apex, authority.epoch)
            places = {**places, part: min(*claims, places.get(part, authority.delivered))}
        self._journal.keep(peer.edge, places, holders)
        if not self._bailiwick.is_fenced:
            self._journal.when_kept(kept)

    # what an edge wants

    def add_interest(self, peer: EdgePeer, topic_filter: str, request: int, retained: bool) -> None:
        """Count the filter from here on and answer in the edge's stream."""
        port = peer.port
        if self._bailiwick.is_fenced and self._bailiwick.park(
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
        """The same where the answer is due now: the retained messages; None: it is not."""
        if self._bailiwick.is_fenced or not self._authority.is_settled:
            return None
        self._peers.add_filter(peer, topic_filter)
        return self._authority.retained.walk(topic_filter)

    def remove_interest(self, peer: EdgePeer, topic_filter: str) -> None:
        """The last client of the edge left the filter."""
        self._bailiwick.withdraw(peer, topic_filter)
        self._peers.remove_filter(peer, topic_filter)

    # internal

    def _unheard(self, peer: EdgePeer, claims: Iterable[str] = ()) -> set[str]:
        """
        Apexes that came back and that the edge has not claimed, nor does now. One that was
        delegated again since has taken along what the edge wants of it.
        """
        unclaimed = peer.unclaimed.keys() - set(claims)
        return {apex for apex in unclaimed if self._table.lookup(apex) is None}

    @contextmanager
    def _noting_claims(self, peer: EdgePeer) -> Iterator[None]:
        before = peer.open_claims()
        yield
        if peer.open_claims() != before:
            self._journal.note_unclaimed((peer.edge,))

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
            asked = authority.retained.ask(topic_filter) if retained else None
            port.answer(request, authority.delivered, asked)
