"""
How parts of a zone, or all of it, go to another node and come back, at the node that has it now.

What travels, and when which step is safe, is decided elsewhere (`HandoverSource`, `delegation`, the
control plane); here is what each step does to the zone. A fenced subtree takes nothing until it is
another node's, or is served here again.
"""

from __future__ import annotations

from typing import Protocol

from txbroker.authority.edge_registry import EdgeRegistry
from txbroker.authority.handover_source import HandedZone, HandoverSource
from txbroker.authority.zone_scope import ZoneScope
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.journal.zone_journal import ZoneJournal
from txbroker.model.zone_cut import ZoneCut


class DividedZone(HandedZone, Protocol):
    """The authority, as the transfer of parts of its zone sees it."""

    @property
    def apex(self) -> str:
        """The zone's topmost prefix."""

    @property
    def serving(self) -> bool:
        """True if the zone is served here."""

    @property
    def settles_at(self) -> int:
        """The offset at which all that was taken so far is durable."""

    @property
    def outgoing(self) -> list[HandoverSource]:
        """The handovers that are under way; each hears which retained messages change."""

    @property
    def reception(self) -> EdgeRegistry:
        """Whoever takes the interest of edges."""

    def announce(self, cut: ZoneCut) -> None:
        """Tell every connected edge of a cut, in its stream."""

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """Tell every connected edge that this delegation ended."""

    def discard_retained(self, apex: str) -> None:
        """Drop the retained messages of a subtree, which are its new owner's."""

    def close(self) -> None:
        """The zone was handed over: every edge is told, and nothing of it is kept."""


class SubtreeTransfer:
    """Of the zone of one authority."""

    def __init__(
        self,
        authority: DividedZone,
        table: DelegationTable,
        journal: ZoneJournal,
        bailiwick: ZoneScope,
    ) -> None:
        self._authority = authority
        self._peers = authority.peers
        self._table = table
        self._journal = journal
        self._bailiwick = bailiwick

    # one goes

    def awaits_claims(self, apex: str) -> bool:
        """Whether edges have not claimed yet what they inherited of the subtree or around it."""
        return self._peers.await_claims(apex)

    def prepare(self, apex: str) -> HandoverSource:
        """Start to hand the subtree over; it is served here until the fence."""
        outgoing = HandoverSource(self._authority, apex)
        self._authority.outgoing.append(outgoing)
        return outgoing

    def fence(self, outgoing: HandoverSource) -> int:
        """
        Take nothing more for the subtree; returns the offset of the last QoS 1 or 2 record before
        that: a position never gets to a QoS 0 one, and whoever waits for it would wait for ever.

        The rest may be copied when what was taken before has settled: `in_order` tells.
        """
        self._bailiwick.fence(outgoing.apex)
        return self._authority.settles_at

    def roll_back(self, outgoing: HandoverSource) -> None:
        """The handover came to nothing; the subtree is served here on."""
        self._end(outgoing)

    def complete(self, outgoing: HandoverSource) -> None:
        """The parent has committed: the subtree is another node's, and every edge is told."""
        apex = outgoing.apex
        if apex == self._authority.apex:
            self._authority.close()
        else:
            self._authority.discard_retained(apex)
            for peer in self._peers:
                # One that is connected may have records of the subtree to come before the cut; it
                # withdraws its filters itself when it hears of that.
                if peer.port is None:
                    self._peers.remove_within(peer, apex)
            cut = self._table.get(apex)
            if cut is not None:
                self._authority.announce(cut.cut)
        self._end(outgoing)

    # one comes back

    def hold(self, apex: str) -> None:
        """
        A subtree has come back: take nothing for it before `let_go`.

        The edges that are here claim it first, so that no record of it lies below the position of
        one that had not heard of it.
        """
        self._bailiwick.fence(apex)

    def is_claimed(self, apex: str) -> bool:
        """Whether all edges that are here have claimed what they inherited of the subtree."""
        return not self._peers.await_claims(apex, connected=True)

    def let_go(self, apex: str) -> None:
        """The subtree is served from now on."""
        self._lift(apex)

    def reclaim(self, apex: str, epoch: int) -> None:
        """
        A subtree is this zone's again, from the offset on that the table says, and its last owner,
        of `epoch`, has not said what edges want of it: each one, known or not, gets nothing of it
        before it has claimed it, and then all.
        """
        offset = self._table.reclaimed_at()[apex]
        self._peers.reclaim(apex, offset)
        self._journal.note_unclaimed([peer.edge for peer in self._peers])
        self._journal.note_reclaimed(apex, offset)
        self._authority.announce_end(apex, epoch, offset)

    # internal

    def _end(self, outgoing: HandoverSource) -> None:
        self._authority.outgoing.remove(outgoing)
        self._lift(outgoing.apex)

    def _lift(self, apex: str) -> None:
        authority, parked = self._authority, self._bailiwick.lift(apex)
        if authority.serving:
            for asked in parked:
                if asked.port is asked.peer.port:
                    authority.reception.add_interest(
                        asked.peer, asked.topic_filter, asked.request, asked.retained
                    )
        for port in self._peers.ports():
            port.unpark()
