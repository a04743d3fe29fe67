"""
The edges of a zone: who is known, who wants what, who gets a copy of a topic's messages.

One entry an edge, however many of its filters match: one copy an edge (invariant 3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain

import attrs

from txbroker.authority.edge_peer import EdgePeer, EdgePort
from txbroker.core import Router, Run
from txbroker.core.sorted_filters import SortedFilters
from txbroker.core.topic_cache import TopicCache
from txbroker.delegation.zone_snapshot import EdgeInterest
from txbroker.journal.zone_journal import Record, Unclaimed
from txbroker.model.topics import is_within

TOPICS_REMEMBERED = 100_000
"""Topics of which is remembered who gets them, and that they are the zone's."""

EDGES_REMEMBERED = 100_000
"""Edges that all different answers name together, with one for each answer."""

PEERS = 10_000
"""Edges that are remembered; beyond that one that is away is forgotten."""


@attrs.frozen
class _Receivers:
    """Edges that get the same topics."""

    peers: tuple[EdgePeer, ...]


class EdgePeers:
    """
    The edges of one zone, connected or not. `reclaimed` gives the apexes that came back to it and
    that no edge was told of by an earlier owner, each with the offset that it starts behind.
    """

    def __init__(self, router: Router, reclaimed: Callable[[], dict[str, int]] = dict) -> None:
        self._router = router
        self._reclaimed = reclaimed
        self._known: dict[str, EdgePeer] = {}
        self._filters = SortedFilters()  # of all edges, each once
        self._receivers: TopicCache[_Receivers] = TopicCache(TOPICS_REMEMBERED)
        self._young = self._receivers.young
        self._sets: dict[tuple[EdgePeer, ...], _Receivers] = {}
        self._sets_size = 0

    def __iter__(self) -> Iterator[EdgePeer]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, edge: str) -> EdgePeer | None:
        """What is known of an edge."""
        return self._known.get(edge)

    def ports(self) -> list[EdgePort]:
        """The edges that are connected."""
        return [peer.port for peer in self._known.values() if peer.port is not None]

    @property
    def topics(self) -> int:
        """Topics of which is remembered who gets them."""
        return len(self._receivers)

    # receivers

    def receivers(self, topic: str) -> tuple[EdgePeer, ...]:
        """Who gets the topic's messages."""
        known = self._young.get(topic) or self._receivers.again(topic)
        if known is None:
            found = self._router.interests.match(topic)
            peers = tuple({peer.edge: peer for _, peer in found}.values())
            # Most topics go to the same edges as others do.
            self._sets_size += 0 if peers in self._sets else len(peers) + 1
            if self._sets_size > EDGES_REMEMBERED:
                self._forget_receivers()
            known = self._sets.setdefault(peers, _Receivers(peers))
            self._receivers.put(topic, known)
        return known.peers

    def split(self, run: Run) -> list[tuple[tuple[EdgePeer, ...], Run]]:
        """What of a run goes to whom."""
        return self._router.receivers(run)

    def sole(self, runs: list[Run]) -> EdgePeer | None:
        """Who gets all of these runs, where nobody else gets any of them."""
        found: EdgePeer | None = self._router.sole_receiver(runs)
        return found

    # who is known

    def greet(self, edge: str, incarnation: int) -> EdgePeer | None:
        """The edge in this life of its process; None when a newer one is known."""
        peer = self._known.get(edge)
        if peer is not None and peer.incarnation > incarnation:
            return None
        return self.admit(edge, incarnation)

    def admit(self, edge: str, incarnation: int) -> EdgePeer:
        """The same of the life that is here, whatever its number."""
        peer = self._known.get(edge)
        if peer is None or peer.incarnation != incarnation:
            inherited, filters = self._reclaimed(), set[str]()
            if peer is not None:
                inherited = peer.open_claims()
                filters = peer.filters & self._touching(inherited)
                self.forget(peer)
            self._make_room()
            # What it has not claimed waits for it over a restart of its process.
            peer = EdgePeer(edge=edge, incarnation=incarnation, unclaimed=inherited)
            self._known[edge] = peer
            self.set_filters(peer, filters)
        return peer

    def inherit(self, apex: str, interest: EdgeInterest, offset: int) -> None:
        """
        An edge comes along with a subtree; its deliveries wait behind `offset`.

        Of a life that is here no other node knows better whether it is the last one.
        """
        peer = self._known.get(interest.edge)
        if peer is None or peer.port is None or interest.incarnation < peer.incarnation:
            peer = self.greet(interest.edge, interest.incarnation)
        if peer is None:
            return
        for topic_filter in interest.filters:
            self.add_filter(peer, topic_filter)
        # What it has not claimed of an earlier time is not forgotten.
        peer.unclaimed.setdefault(apex, offset)

    def reclaim(self, apex: str, offset: int) -> None:
        """A subtree came back without its edges: all deliveries of it wait behind `offset`."""
        for peer in self:
            peer.unclaimed.setdefault(apex, offset)

    def restore(self, known: Unclaimed) -> None:
        """What was known of an edge when the process ended."""
        peer = self.greet(known.interest.edge, known.interest.incarnation)
        if peer is None:
            return
        for topic_filter in known.interest.filters:
            self.add_filter(peer, topic_filter)
        unheard = self._reclaimed().items() - known.heard.items()
        peer.unclaimed = {**dict(unheard), **known.apexes}

    def unclaimed_of(self, edge: str) -> dict[str, int]:
        """What an edge, known or not, has not claimed, with the offsets that it starts behind."""
        peer = self._known.get(edge)
        return self._reclaimed() if peer is None else peer.unclaimed

    def forget(
        self, peer: EdgePeer, reason: str = "a newer process of this edge took over"
    ) -> None:
        """Drop all that is known of an edge."""
        self.set_filters(peer, set())
        peer.disconnect(reason)
        del self._known[peer.edge]

    def forget_all(self, reason: str) -> None:
        """Drop all edges."""
        for peer in self:
            self.forget(peer, reason)

    def _make_room(self) -> None:
        # The one known for longest goes; it is away, and starts anew if it comes back.
        if len(self._known) >= PEERS:
            away = next((peer for peer in self._known.values() if peer.port is None), None)
            if away is not None:
                self.forget(away)

    # interest

    def add_filter(self, peer: EdgePeer, topic_filter: str) -> None:
        """The edge wants what matches."""
        if topic_filter not in peer.filters:
            peer.filters.add(topic_filter)
            if topic_filter not in self._router.interests:
                self._filters.add(topic_filter)
            self._router.interests.add(topic_filter, peer.edge, peer)
            self._forget_receivers()

    def remove_filter(self, peer: EdgePeer, topic_filter: str) -> None:
        """The last client of the edge left the filter."""
        if topic_filter in peer.filters:
            peer.filters.discard(topic_filter)
            self._router.interests.remove(topic_filter, peer.edge)
            if topic_filter not in self._router.interests:
                self._filters.discard(topic_filter)
            self._forget_receivers()

    def remove_within(self, peer: EdgePeer, apex: str) -> None:
        """An edge that is away wants nothing that only what is within an apex can match."""
        for texts in list(self._filters.within(apex)):
            for topic_filter in texts:
                self.remove_filter(peer, topic_filter)

    def set_filters(self, peer: EdgePeer, filters: set[str]) -> None:
        """Replace the edge's interest."""
        for topic_filter in peer.filters - filters:
            self.remove_filter(peer, topic_filter)
        for topic_filter in filters - peer.filters:
            self.add_filter(peer, topic_filter)

    def replace_filters(
        self, peer: EdgePeer, filters: Iterable[str], unheard: Collection[str]
    ) -> None:
        """
        Replace the edge's interest, but for apexes of which it has not heard that they are here.

        It withdrew what it wants of them when they went, and they brought it along.
        """
        kept = peer.filters & self._touching(unheard)
        self.set_filters(peer, kept | set(filters))

    def _touching(self, apexes: Iterable[str]) -> set[str]:
        """The filters of all edges that may match within one of the apexes."""
        found = (texts for apex in apexes for texts in self._filters.touching(apex))
        return set(chain.from_iterable(found))

    def _forget_receivers(self) -> None:
        if self._sets:
            self._receivers.clear()
            self._sets.clear()
            self._sets_size = 0

    def wanted(self, peer: EdgePeer, records: Iterable[Record]) -> list[Record]:
        """Those of the records that the edge is to get."""
        return [
            record
            for record in records
            if not peer.is_waiting_for(record) and peer in self.receivers(record.message.topic)
        ]

    def unclaimed(self) -> Iterator[Unclaimed]:
        """What edges have not claimed, or not processed since they did."""
        reclaimed = self._reclaimed()
        for peer in self._known.values():
            apexes = peer.open_claims()
            heard = {a: at for a, at in reclaimed.items() if a not in peer.unclaimed}
            if apexes or heard:
                filters = tuple(sorted(peer.filters)) if apexes else ()
                interest = EdgeInterest(
                    edge=peer.edge, incarnation=peer.incarnation, filters=filters
                )
                yield Unclaimed(interest=interest, apexes=apexes, heard=heard)

    def within(self, apex: str) -> Iterator[EdgeInterest]:
        """Who wants what of the subtree."""
        touching = self._touching((apex,))
        for peer in self._known.values():
            filters = tuple(sorted(peer.filters & touching))
            if filters:
                yield EdgeInterest(edge=peer.edge, incarnation=peer.incarnation, filters=filters)

    def await_claims(self, apex: str, *, connected: bool = False) -> bool:
        """
        Whether edges have not claimed yet what they inherited of the subtree or around it;
        `connected`: only those that are here count.
        """
        return any(
            is_within(apex, inherited) or is_within(inherited, apex)
            for peer in self._known.values()
            if peer.port is not None or not connected
            for inherited in peer.unclaimed
        )
