"""
The edges of a zone: who is known, who wants what, who gets a copy of a topic's messages.

One entry an edge, however many of its filters match: one copy an edge (invariant 3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from txbroker.authority.handover import EdgeInterest
from txbroker.authority.journal import Record, Unclaimed
from txbroker.authority.peer import EdgePort, Peer
from txbroker.core import Exchange, Run
from txbroker.topics import is_within, may_match_within

TOPICS_REMEMBERED = 100_000
"""Topics of which is remembered who gets them, and that they are the zone's."""

PEERS = 10_000
"""Edges that are remembered; beyond that one that is away is forgotten."""

LONGEST_REMEMBERED = 512
"""Longer topics are worked out each time, so that they cannot fill the memory."""


class Peers:
    """
    The edges of one zone, connected or not. `reclaimed` gives the apexes that came back to it and
    that no edge was told of by an earlier owner, each with the offset that it starts behind.
    """

    def __init__(self, exchange: Exchange, reclaimed: Callable[[], dict[str, int]] = dict) -> None:
        self._exchange = exchange
        self._reclaimed = reclaimed
        self._known: dict[str, Peer] = {}
        self._receivers: dict[str, tuple[Peer, ...]] = {}

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, edge: str) -> Peer | None:
        """What is known of an edge."""
        return self._known.get(edge)

    def ports(self) -> list[EdgePort]:
        """The edges that are connected."""
        return [peer.port for peer in self._known.values() if peer.port is not None]

    # receivers

    def receivers(self, topic: str) -> tuple[Peer, ...]:
        """Who gets the topic's messages."""
        known = self._receivers.get(topic)
        if known is None:
            found = self._exchange.interests.match(topic)
            known = tuple({peer.edge: peer for _, peer in found}.values())
            if len(self._receivers) >= TOPICS_REMEMBERED:
                self._receivers.clear()
            if len(topic) <= LONGEST_REMEMBERED:
                self._receivers[topic] = known
        return known

    def split(self, run: Run) -> list[tuple[tuple[Peer, ...], Run]]:
        """What of a run goes to whom."""
        return self._exchange.receivers(run)

    def sole(self, runs: list[Run]) -> Peer | None:
        """Who gets all of these runs, where nobody else gets any of them."""
        found: Peer | None = self._exchange.sole_receiver(runs)
        return found

    # who is known

    def greet(self, edge: str, incarnation: int) -> Peer | None:
        """The edge in this life of its process; None when a newer one is known."""
        peer = self._known.get(edge)
        if peer is not None and peer.incarnation > incarnation:
            return None
        if peer is None or peer.incarnation < incarnation:
            inherited = self._reclaimed() if peer is None else peer.open_claims()
            if peer is not None:
                self.forget(peer)
            self._make_room()
            # What it has not claimed waits for it over a restart of its process.
            peer = Peer(edge=edge, incarnation=incarnation, unclaimed=inherited)
            self._known[edge] = peer
        return peer

    def inherit(self, apex: str, interest: EdgeInterest, offset: int) -> None:
        """An edge comes along with a subtree; its deliveries wait behind `offset`."""
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

    def forget(self, peer: Peer, reason: str = "a newer process of this edge took over") -> None:
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

    def add_filter(self, peer: Peer, topic_filter: str) -> None:
        """The edge wants what matches."""
        if topic_filter not in peer.filters:
            peer.filters.add(topic_filter)
            self._exchange.interests.add(topic_filter, peer.edge, peer)
            self._receivers.clear()

    def remove_filter(self, peer: Peer, topic_filter: str) -> None:
        """The last client of the edge left the filter."""
        if topic_filter in peer.filters:
            peer.filters.discard(topic_filter)
            self._exchange.interests.remove(topic_filter, peer.edge)
            self._receivers.clear()

    def set_filters(self, peer: Peer, filters: set[str]) -> None:
        """Replace the edge's interest."""
        for topic_filter in peer.filters - filters:
            self.remove_filter(peer, topic_filter)
        for topic_filter in filters - peer.filters:
            self.add_filter(peer, topic_filter)

    def replace_filters(self, peer: Peer, filters: Iterable[str], unheard: Collection[str]) -> None:
        """
        Replace the edge's interest, but for apexes of which it has not heard that they are here.

        It withdrew what it wants of them when they went, and they brought it along.
        """
        kept = {f for f in peer.filters if any(may_match_within(f, apex) for apex in unheard)}
        self.set_filters(peer, kept | set(filters))

    def wanted(self, peer: Peer, records: Iterable[Record]) -> list[Record]:
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
        for peer in self._known.values():
            filters = tuple(sorted(f for f in peer.filters if may_match_within(f, apex)))
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
