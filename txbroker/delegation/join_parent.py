"""
The parent's answer to a node that asks for a zone, from its announcement to the grant.

Theory of operation. The steps, all of them under the node's lock on changes of ownership:

1. The rules decide (`delegation.join_rules`): refused, elsewhere, renewed or handed over.
2. Renewed: the grant is saved, then edges hear of the cut. A forgotten delegation is fenced before,
   and the child confirms the marks of all publish streams here. Publishes that this node accepted
   for the zone continue to the child.
3. Handed over: see `delegation.handover`.
4. A branch of the child that an operator reclaimed is settled. Until the child's zone is open
   again, no reader asks the child for the branch.

The caller registers the child and grants in the same turn as the procedure ends. Otherwise a change
of lineage would not reach the child. A procedure that fails has granted nothing, and the child asks
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from txbroker.delegation.grant_state import Strays
from txbroker.delegation.handover import HandedOverZone, HandoverNode, HandoverParent
from txbroker.delegation.join_messages import (
    Announcement,
    AnswerDelayed,
    JoinGranted,
    StreamMarks,
    ZoneReceived,
)
from txbroker.delegation.join_rules import (
    APEXES,
    Applicant,
    Decision,
    GrantRenewed,
    JoinRefused,
    ZoneElsewhere,
    ZoneTransfer,
    decide,
    kept_below,
)
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.procedure import (
    AwaitSettled,
    LogEvent,
    Procedure,
    ReceiveMessage,
    Releasable,
    SendMessage,
    locked,
)
from txbroker.delegation.timeouts import HANDOVER_STEP
from txbroker.delegation.zone_snapshot import MarkKey, will_of_mark
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message

MARKS_AT_ONCE = 10_000
"""Marks in one message, well below gRPC's limit."""


class RetainedValues(Protocol):
    """The retained messages of a zone."""

    def within(self, apex: str) -> Iterator[Message]:
        """Yield the messages of a subtree."""


class GrantingZone(HandedOverZone, Protocol):
    """The zone of the node that answers."""

    offset: int

    @property
    def marks(self) -> Mapping[MarkKey, int]:
        """Return the mark of each publish stream."""

    @property
    def retained(self) -> RetainedValues:
        """Return the messages that the zone retains."""

    def announce(self, cut: ZoneCut) -> None:
        """Announce a cut to every connected edge."""

    def announce_found(self, cut: ZoneCut) -> None:
        """Announce a cut that this node had forgotten."""

    def discard_retained(self, apex: str) -> None:
        """Discard the retained messages of a subtree, which are its owner's."""


class StrayPublishes(Protocol):
    """The delivery of publishes that this node accepted for another node's zone."""

    def earlier(self, granted_by: JournalId) -> Mapping[int, int]:
        """Return the last offset of each earlier life's part above that one."""

    def collect(self, some: Sequence[Strays], retained: Iterable[Message] = ()) -> None:
        """Deliver the strays of one zone to its owner."""


@attrs.frozen(kw_only=True)
class AskAgain:
    """The parent cannot answer now; `reason` is one line for the child's log."""

    reason: str


JoinOutcome = Decision | AskAgain


class JoinParent:
    """The parent's half of a join; `ownership`: the lock on all changes of ownership."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        zone: GrantingZone,
        strays: StrayPublishes,
        node: HandoverNode,
        ownership: Releasable,
    ) -> None:
        self._node_grant = node_grant
        self._zone = zone
        self._strays = strays
        self._ownership = ownership
        self._handover = HandoverParent(node_grant=node_grant, zone=zone, node=node)

    def answer(self, announcement: Announcement) -> Procedure[JoinOutcome]:
        """Answer a child that asks for a zone; see the steps above."""
        # A child that gave up in the queue would come again, and its handover be rolled back.
        return locked(self._ownership, self._answer(announcement), meanwhile=AnswerDelayed())

    # internal

    def _answer(self, announcement: Announcement) -> Procedure[JoinOutcome]:
        node_grant, applicant = self._node_grant, announcement.applicant
        if not self._zone.serving:
            return AskAgain(reason="the parent has no grant now")
        left_out = node_grant.skipped_epochs(applicant.zone)
        decision = decide(
            node_grant.table, applicant, node_grant.lineage, node_grant.cut, left_out=left_out
        )
        match decision:
            case JoinRefused() | ZoneElsewhere():
                self._settle_unclaimed(applicant)
                return decision
            case GrantRenewed():
                yield from self._renew(decision, announcement)
            case ZoneTransfer(cut=cut):
                yield from self._handover.hand_over(cut)
        self._settle(applicant)
        return decision

    def _settle_unclaimed(self, applicant: Applicant) -> None:
        # A node that claims no epoch has settled the branch that was reclaimed from it.
        table = self._node_grant.table
        if not applicant.holds and not table.was_reclaimed(applicant.zone, applicant.prepared):
            self._settle(applicant)

    def _settle(self, applicant: Applicant) -> None:
        if self._node_grant.table.close_branch(applicant.zone, applicant.node):
            self._node_grant.save()

    def _renew(self, renewed: GrantRenewed, announcement: Announcement) -> Procedure[None]:
        node_grant = self._node_grant
        applicant, cut = announcement.applicant, renewed.cut
        told = self._cuts_below(applicant)
        below = kept_below(node_grant.table, cut.apex, told)
        if below != told:
            yield from report_over_limit(cut.apex)
        known = node_grant.table.get(cut.apex)
        if known is None:
            yield from self._renew_forgotten(renewed, below, announcement)
        elif known.cut != cut or known.below != below:
            before = _epoch_before(applicant)
            node_grant.renew(cut, below, self._zone.offset, since=renewed.since, before=before)
            self._zone.announce(cut)

    def _renew_forgotten(
        self, renewed: GrantRenewed, below: tuple[ZoneCut, ...], announcement: Announcement
    ) -> Procedure[None]:
        """
        Grant a zone that this node had forgotten, and served meanwhile.

        The fence lies before the marks and before the strays' last record. The parent would hand on
        a publish in between. The publish's edge, which asks the child for its mark, would send it
        again.
        """
        node_grant, zone, cut = self._node_grant, self._zone, renewed.cut
        outgoing = zone.subtrees.prepare(cut.apex)
        try:
            zone.subtrees.fence(outgoing)
            yield AwaitSettled()
            if announcement.takes_marks:
                yield from self._tell_marks(cut.apex)
            if not zone.serving:
                raise ConnectionError("the parent has lost its own zone")
            applicant, granted_by = announcement.applicant, announcement.granted_by
            strays = node_grant.renew(
                cut,
                below,
                zone.offset,
                since=renewed.since,
                before=_epoch_before(applicant),
                earlier=self._strays.earlier(granted_by or JournalId("", 0)),
            )
            retained = list(zone.retained.within(cut.apex))
            zone.discard_retained(cut.apex)
            zone.announce_found(cut)
        finally:
            zone.subtrees.roll_back(outgoing)
        if strays:
            # A restored copy has values of before the delegation, which are older than the child's.
            self._strays.collect(strays, () if node_grant.is_copy else retained)

    def _tell_marks(self, apex: str) -> Procedure[None]:
        """Tell the child the marks of all streams but those to its own zone."""
        marks = tuple(
            (key, sequence)
            for key, sequence in self._zone.marks.items()
            if will_of_mark(key) is not None or not is_within(key[2], apex)
        )
        for first in range(0, len(marks), MARKS_AT_ONCE):
            some = StreamMarks(marks=marks[first : first + MARKS_AT_ONCE])
            yield SendMessage(message=some, seconds=HANDOVER_STEP)
            answer = yield ReceiveMessage(seconds=HANDOVER_STEP)
            if not isinstance(answer, ZoneReceived):
                raise ConnectionError("the child did not confirm")

    def _cuts_below(self, applicant: Applicant) -> tuple[ZoneCut, ...]:
        """
        Return the cuts below the child: its own report, merged with the report of before its data
        was lost.
        """
        known = self._node_grant.table.get(applicant.zone)
        if known is None or not applicant.restored:
            return applicant.below
        newest = {cut.apex: cut for cut in applicant.below}
        for cut in known.below:
            if cut.apex not in newest or newest[cut.apex].epoch < cut.epoch:
                newest[cut.apex] = cut
        return tuple(newest.values())


def _epoch_before(applicant: Applicant) -> int:
    """
    Return the last epoch that a restored copy knows of its zone; 0: the data is no copy.

    Edges followed the life that was granted what the copy had only prepared.
    """
    return max(applicant.last_epoch, applicant.prepared) if applicant.restored else 0


def report_over_limit(apex: str) -> Procedure[None]:
    """Log that the cuts below a child pass a bound; the child is asked often."""
    yield LogEvent(
        name="zones.over_limit",
        fields={"zone": apex, "limit": APEXES},
        level="warning",
        kind=apex,
    )


def grant_for(node_grant: NodeGrant, announcement: Announcement, epoch: int) -> JoinGranted:
    """Return the grant of the announced zone at `epoch`; 0: the parent accepts a pure edge."""
    lineage, root = node_grant.lineage_of_children(), node_grant.root
    if not announcement.owns_zone:
        return JoinGranted(epoch=epoch, lineage=lineage, root=root)
    zone = announcement.applicant.zone
    held = node_grant.table.get(zone)
    is_lost = announcement.applicant.restored and held is not None
    return JoinGranted(
        epoch=epoch,
        lineage=lineage,
        ended=node_grant.ended_around(zone),
        below=held.below if is_lost and held is not None else (),
        root=root,
    )
