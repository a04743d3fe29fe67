"""
The transfer of a zone's subtrees, or of all the zone, to another node and back.

The transfer applies each step to the zone of the present owner. `HandoverSource` defines the moved
state; `delegation` and the control plane decide when a step is safe. A fenced subtree accepts no
publish. The steps:

- away: `prepare` begins the bulk copy, and the subtree stays served. `fence` parks publishes and
  interests. `complete` announces the cut after the parent's commit; `roll_back` serves the subtree
  on.
- back: `lacks_room` names the bound that the subtree would pass. `fence_returned` fences the
  returned subtree while its edges claim it. `release` serves the subtree.
- `reclaim`: a lost node's subtree comes back without state, and is served at once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from txbroker.authority.edge_registry import EdgeRegistry
from txbroker.authority.handover_source import HandedZone, HandoverSource
from txbroker.authority.zone_scope import ZoneScope
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import ReceivedZone, will_of_mark
from txbroker.journal.zone_journal import ZoneJournal
from txbroker.model.zone_cut import ZoneCut


class DividedZone(HandedZone, Protocol):
    """The port of a transfer to the authority."""

    @property
    def apex(self) -> str:
        """Return the zone's topmost prefix."""

    @property
    def serving(self) -> bool:
        """True if the zone is served here."""

    @property
    def durable_at(self) -> int:
        """Return the offset at which all accepted publishes are durable."""

    @property
    def source(self) -> list[HandoverSource]:
        """Return the handovers under way; each is notified of changed retained messages."""

    @property
    def most_retained(self) -> tuple[int, int]:
        """Return the most retained messages, and the most bytes of them."""

    @property
    def reception(self) -> EdgeRegistry:
        """Return the registry of the edges' interests."""

    def announce(self, cut: ZoneCut) -> None:
        """Announce a cut to every connected edge, in its delivery stream."""

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """Announce the end of a delegation to every connected edge."""

    def discard_retained(self, apex: str) -> None:
        """Discard the retained messages of a subtree, which are its new owner's."""

    def close(self) -> None:
        """Announce the end after a handover, and discard the retained messages."""


class SubtreeTransfer:
    """The transfers of one authority's zone."""

    def __init__(
        self,
        authority: DividedZone,
        table: DelegationTable,
        journal: ZoneJournal,
        zone_scope: ZoneScope,
    ) -> None:
        self._authority = authority
        self._peers = authority.peers
        self._table = table
        self._journal = journal
        self._zone_scope = zone_scope

    # a subtree moves away

    def awaits_claims(self, apex: str) -> bool:
        """True if edges have unclaimed inheritances of the subtree, or around it."""
        return self._peers.await_claims(apex)

    def prepare(self, apex: str) -> HandoverSource:
        """Begin a handover of the subtree, which stays served until the fence."""
        source = HandoverSource(self._authority, apex)
        self._authority.source.append(source)
        return source

    def fence(self, source: HandoverSource) -> int:
        """
        Fence the subtree; return the offset of the last QoS 1 or 2 record before the fence.

        A waiter for a QoS 0 offset would wait for ever: a position counts QoS 1 and 2 only. The
        rest may be copied when all earlier publishes have settled (`in_order`).
        """
        self._zone_scope.fence(source.apex)
        return self._authority.durable_at

    def roll_back(self, source: HandoverSource) -> None:
        """Roll the handover back; this node serves the subtree on."""
        self._end(source)

    def complete(self, source: HandoverSource) -> None:
        """Complete the handover after the parent's commit, and announce the cut to every edge."""
        apex = source.apex
        if apex == self._authority.apex:
            self._authority.close()
        else:
            self._authority.discard_retained(apex)
            for peer in self._peers:
                # A connected edge may still receive records of the subtree before the cut. Such an
                # edge withdraws its filters itself at the cut.
                if peer.port is None:
                    self._peers.remove_within(peer, apex)
            cut = self._table.get(apex)
            if cut is not None:
                self._authority.announce(cut.cut)
        self._end(source)

    # a subtree comes back

    def lacks_room(self, apex: str, received_zone: ReceivedZone, edges: Collection[str]) -> str:
        """
        Return what of an arriving subtree passes a bound here, with the remedy; "": nothing.

        `edges`: all edges that come along. The zone's own marks and retained messages count too,
        unless all of the zone arrives and replaces them.
        """
        authority, is_anew = self._authority, apex == self._authority.apex
        streams = [key for key in received_zone.marks if will_of_mark(key) is None]
        if not authority.reception.may_come(edges):
            return "edges; let lost ones go: txbroker forget"
        if not authority.reception.may_begin(streams, is_anew=is_anew):
            return "duplicate marks; let lost nodes go: txbroker forget"
        messages, size = authority.most_retained
        arriving = received_zone.retained.values()
        messages -= len(arriving) + (0 if is_anew else len(authority.retained))
        size -= sum(len(one.topic.encode()) + len(one.payload) for one in arriving)
        size -= 0 if is_anew else authority.retained.size
        if arriving and min(messages, size) < 0:
            return "retained messages; raise `limits.retained`, or clear some"
        return ""

    def may_reclaim(self, apex: str) -> bool:
        """True if there is room for what edges may need of the subtree from its reclaim on."""
        return self._journal.has_room_to_reserve(apex)

    def fence_returned(self, apex: str) -> None:
        """
        Fence a subtree that has come back, until `release`.

        The connected edges claim it first. Otherwise a record could lie below the position of an
        edge that had not heard of the return.
        """
        self._zone_scope.fence(apex)

    def is_claimed(self, apex: str) -> bool:
        """True if all connected edges have claimed what they inherited of the subtree."""
        return not self._peers.await_claims(apex, connected=True)

    def release(self, apex: str) -> None:
        """Serve the subtree from now on."""
        self._lift(apex)

    def reclaim(self, apex: str, epoch: int) -> None:
        """
        Resume a reclaimed subtree behind the offset that the delegation table names.

        Its last owner, of `epoch`, has not reported the edges' interests. So each edge, known or
        not, gets no record of the subtree before its claim, and all of them after.
        """
        offset = self._table.reclaimed_at()[apex]
        self._peers.reclaim(apex, offset)
        self._journal.store_unclaimed([peer.edge for peer in self._peers])
        self._journal.reserve_reclaimed(apex, offset)
        self._authority.announce_end(apex, epoch, offset)

    # internal

    def _end(self, source: HandoverSource) -> None:
        self._authority.source.remove(source)
        self._lift(source.apex)

    def _lift(self, apex: str) -> None:
        authority, parked = self._authority, self._zone_scope.lift(apex)
        if authority.serving:
            for asked in parked:
                if asked.port is asked.peer.port:
                    authority.reception.add_interest(
                        asked.peer, asked.topic_filter, asked.request, asked.retained
                    )
        for port in self._peers.ports():
            port.unpark()
