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
from txbroker.model.invariant import holds, ordered
from txbroker.model.topics import is_within, literal_prefix, may_meet

TOPICS_REMEMBERED = 100_000
"""The most topics whose receivers are cached."""

EDGES_REMEMBERED = 100_000
"""The most edges in all cached sets of receivers, counting one more for each set."""

PEERS = 10_000
"""The most remembered edges; beyond that the table evicts an edge that is away."""


@attrs.frozen
class _Receivers:
    """Edges that get the same topics."""

    peers: tuple[EdgePeer, ...]


class EdgePeers:
    """
    The edges of one zone, connected or not. `reclaimed` gives the apexes that came back to the zone
    and of which no earlier owner told an edge. Each apex has the offset that it starts behind.
    """

    def __init__(self, router: Router, reclaimed: Callable[[], dict[str, int]] = dict) -> None:
        self._router = router
        self._reclaimed = reclaimed
        self._known: dict[str, EdgePeer] = {}
        self._filters = SortedFilters()  # of all edges, each filter once
        self._receivers: TopicCache[_Receivers] = TopicCache(TOPICS_REMEMBERED)
        self._young = self._receivers.young
        self._sets: dict[tuple[EdgePeer, ...], _Receivers] = {}
        self._sets_size = 0

    def __iter__(self) -> Iterator[EdgePeer]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, edge: str) -> EdgePeer | None:
        """Return the edge, if it is known."""
        return self._known.get(edge)

    def ports(self) -> list[EdgePort]:
        """Return the ports of the connected edges."""
        return [peer.port for peer in self._known.values() if peer.port is not None]

    @property
    def topics(self) -> int:
        """Return the number of topics with cached receivers."""
        return len(self._receivers)

    def check(self) -> None:
        """State that each edge is known once, and from where it is owed what it inherited."""
        for edge, peer in self._known.items():
            holds(self, 13, "an edge is known by its name", peer.edge == edge, edge, peer.edge)
            owed = [*peer.unclaimed.values(), *peer.claiming.values()]
            ordered(self, 13, "0 <= what an edge is owed from", 0, min(owed, default=0))

    # receivers

    def receivers(self, topic: str) -> tuple[EdgePeer, ...]:
        """Return the edges that get the topic's messages."""
        known = self._young.get(topic) or self._receivers.again(topic)
        if known is None:
            found = self._router.interests.match(topic)
            peers = tuple({peer.edge: peer for _, peer in found}.values())
            # Most topics have the same receivers as other topics, so the sets are shared.
            self._sets_size += 0 if peers in self._sets else len(peers) + 1
            if self._sets_size > EDGES_REMEMBERED:
                self._forget_receivers()
            known = self._sets.setdefault(peers, _Receivers(peers))
            self._receivers.put(topic, known)
        return known.peers

    def split(self, run: Run) -> list[tuple[tuple[EdgePeer, ...], Run]]:
        """Split a run by its receivers."""
        return self._router.receivers(run)

    # known edges

    def greet(self, edge: str, incarnation: int) -> EdgePeer | None:
        """Return the edge in this life of its process; None if a newer life is known."""
        peer = self._known.get(edge)
        if peer is not None and peer.incarnation > incarnation:
            return None
        return self.admit(edge, incarnation)

    def admit(self, edge: str, incarnation: int) -> EdgePeer:
        """Return the edge in the life that has connected, whatever the life's number."""
        peer = self._known.get(edge)
        if peer is None or peer.incarnation != incarnation:
            inherited, filters = self._reclaimed(), set[str]()
            if peer is not None:
                inherited = peer.open_claims()
                filters = peer.filters & self._touching(inherited)
                self.forget(peer)
            self._make_room()
            # Unclaimed deliveries wait for the edge over a restart of its process.
            peer = EdgePeer(edge=edge, incarnation=incarnation, unclaimed=inherited)
            self._known[edge] = peer
            self.set_filters(peer, filters)
        return peer

    def inherit(self, apex: str, interest: EdgeInterest, offset: int) -> None:
        """
        Add an edge that came with a subtree; its deliveries of the subtree wait behind `offset`.

        A connected life stays, even if the interest names a later life. No other node knows better
        which life is the last.
        """
        peer = self._known.get(interest.edge)
        if peer is None or peer.port is None or interest.incarnation < peer.incarnation:
            peer = self.greet(interest.edge, interest.incarnation)
        if peer is None:
            return
        for topic_filter in interest.filters:
            self.add_filter(peer, topic_filter)
        # An earlier unclaimed offset stays: otherwise the edge would miss the records behind it.
        peer.unclaimed.setdefault(apex, offset)

    def reclaim(self, apex: str, offset: int) -> None:
        """
        Make all edges' deliveries wait behind `offset`: the subtree came back without its edges.
        """
        for peer in self:
            peer.unclaimed.setdefault(apex, offset)

    def restore(self, known: Unclaimed) -> None:
        """Restore an edge's state as stored when the process ended."""
        peer = self.greet(known.interest.edge, known.interest.incarnation)
        if peer is None:
            return
        for topic_filter in known.interest.filters:
            self.add_filter(peer, topic_filter)
        unheard = self._reclaimed().items() - known.heard.items()
        peer.unclaimed = {**dict(unheard), **known.apexes}

    def unclaimed_of(self, edge: str) -> dict[str, int]:
        """Return the unclaimed apexes of an edge, known or not, with their offsets."""
        peer = self._known.get(edge)
        return self._reclaimed() if peer is None else peer.unclaimed

    def forget(
        self, peer: EdgePeer, reason: str = "a newer process of this edge took over"
    ) -> None:
        """Forget an edge and close its link."""
        self.set_filters(peer, set())
        peer.disconnect(reason)
        del self._known[peer.edge]

    def forget_all(self, reason: str) -> None:
        """Forget all edges."""
        for peer in self:
            self.forget(peer, reason)

    def _make_room(self) -> None:
        # The longest known absent edge is evicted; it begins anew if it comes back. An edge with
        # open claims would lose what it inherited, so such an edge is the last one to go.
        if len(self._known) >= PEERS:
            away = [peer for peer in self._known.values() if peer.port is None]
            oldest = next((peer for peer in away if not peer.open_claims()), next(iter(away), None))
            if oldest is not None:
                self.forget(oldest)

    # interest

    def add_filter(self, peer: EdgePeer, topic_filter: str) -> None:
        """Add a filter to the edge's interest."""
        if topic_filter not in peer.filters:
            peer.filters.add(topic_filter)
            if topic_filter not in self._router.interests:
                self._filters.add(topic_filter)
            self._router.interests.add(topic_filter, peer.edge, peer)
            self._forget_receivers()

    def remove_filter(self, peer: EdgePeer, topic_filter: str) -> None:
        """Remove a filter that the edge's last client has left."""
        if topic_filter in peer.filters:
            peer.filters.discard(topic_filter)
            self._router.interests.remove(topic_filter, peer.edge)
            if topic_filter not in self._router.interests:
                self._filters.discard(topic_filter)
            self._forget_receivers()

    def remove_within(self, peer: EdgePeer, apex: str) -> None:
        """Remove an absent edge's filters that can match within the apex only."""
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
        Replace the edge's interest, except for returned apexes that the edge has not heard of.

        The edge withdrew its filters there when the apexes left. The apexes brought these filters
        back.
        """
        kept = peer.filters & self._touching(unheard)
        self.set_filters(peer, kept | set(filters))

    def has_interest(self, topic_filter: str) -> bool:
        """True if a filter of some edge meets this one."""
        near = self._filters.touching(literal_prefix(topic_filter))
        return any(may_meet(one, topic_filter) for texts in near for one in texts)

    def _touching(self, apexes: Iterable[str]) -> set[str]:
        """Return the filters of all edges that may match within one of the apexes."""
        found = (texts for apex in apexes for texts in self._filters.touching(apex))
        return set(chain.from_iterable(found))

    def _forget_receivers(self) -> None:
        if self._sets:
            self._receivers.clear()
            self._sets.clear()
            self._sets_size = 0

    def wanted_records(self, peer: EdgePeer, records: Iterable[Record]) -> list[Record]:
        """Return the records that the edge shall get."""
        return [
            record
            for record in records
            if not peer.is_waiting_for(record) and peer in self.receivers(record.message.topic)
        ]

    def unclaimed(self) -> Iterator[Unclaimed]:
        """Yield the edges' inheritances that are unclaimed, or not processed since the claim."""
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
        """Yield each edge's interest in the subtree."""
        touching = self._touching((apex,))
        for peer in self._known.values():
            filters = tuple(sorted(peer.filters & touching))
            if filters:
                yield EdgeInterest(edge=peer.edge, incarnation=peer.incarnation, filters=filters)

    def await_claims(self, apex: str, *, connected: bool = False) -> bool:
        """
        True if edges have unclaimed inheritances of the subtree, or around it.

        `connected`: only connected edges count.
        """
        return any(
            is_within(apex, inherited) or is_within(inherited, apex)
            for peer in self._known.values()
            if peer.port is not None or not connected
            for inherited in peer.unclaimed
        )
