"""
The child's half of a join, from its announcement to the parent's answer.

Theory of operation. The child announces what it has, and reads replies until one of them decides:

1. Parts of the zone's state, then the fence: the parent hands the zone over. The child makes the
   state durable and confirms (`delegation.handover`).
2. Marks: the parent had forgotten the zone, and took publishes for it. The child makes the marks of
   their streams durable, and confirms.
3. Granted: the child saves the grant, opens the zone, and remembers the parent. The stream stays.
4. Moved: the child saves the named parent, and asks that one next.
5. Refused: the caller suspends the zone, and the child asks again after a pause.

An answer of a stranger at the parent's address decides nothing. A child may die between two steps.
At its next start it announces what its disk has: the last epoch, and the epoch that it has
prepared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from txbroker.delegation.grant_state import KnownParent, KnownRoot
from txbroker.delegation.handover import ReceivingNode, receive_zone
from txbroker.delegation.join_messages import (
    Announcement,
    AnsweringNode,
    HandoverFence,
    JoinGranted,
    ParentAnswer,
    StreamMarks,
    ZoneReceived,
)
from txbroker.delegation.join_rules import Applicant, JoinRefused, ZoneElsewhere
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.peer_checks import (
    check_above,
    check_below,
    check_ended,
    check_epochs,
    check_near,
)
from txbroker.delegation.procedure import (
    AwaitStored,
    Procedure,
    ReceiveMessage,
    SendMessage,
    report,
    warn,
)
from txbroker.delegation.timeouts import ANNOUNCE_STEP, HANDOVER_STEP
from txbroker.delegation.zone_snapshot import MarkKey, ReceivedZone, ZoneSnapshot
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut


class GrantedNode(ReceivingNode, Protocol):
    """The shell of the node that asks."""

    def serve_grant(self) -> None:
        """Serve the zone at the epoch of the node grant, from this turn on."""

    def accept_marks(self, marks: Mapping[MarkKey, int]) -> bool:
        """
        Add marks of publish streams to those of the zone; return False if there is no room.

        A zone that is not open takes none.
        """


@attrs.frozen(kw_only=True)
class Joined:
    """The parent has granted; `who`: the node that answered, None for an older node."""

    who: AnsweringNode | None


@attrs.frozen(kw_only=True)
class Moved:
    """Another node is the parent now."""


@attrs.frozen(kw_only=True)
class ParentLost:
    """The stream ended without an answer."""


@attrs.frozen(kw_only=True)
class ParentStrange:
    """The node `peer` has the parent's address, and is not the parent."""

    peer: str


JoinEnd = Joined | Moved | JoinRefused | ParentLost | ParentStrange


class JoinChild:
    """The child's half of a join."""

    def __init__(self, node_grant: NodeGrant, node: GrantedNode) -> None:
        self._node_grant = node_grant
        self._node = node

    def ask(self, parent: str) -> Procedure[JoinEnd]:
        """
        Ask the parent at this address for the zone, on a new stream; see the steps above.

        Raises `PeerError` for a lie, and `NoRoom` for a zone that would pass a bound.
        """
        yield SendMessage(message=announcement_of(self._node_grant), seconds=ANNOUNCE_STEP)
        received_zone = ReceivedZone()
        marks: dict[MarkKey, int] = {}
        while True:
            match (yield ReceiveMessage(seconds=HANDOVER_STEP)):
                case None:
                    return ParentLost()
                case ZoneSnapshot() as part:
                    received_zone.merge(part)
                case HandoverFence() as fence:
                    yield from receive_zone(self._node_grant, self._node, received_zone, fence)
                case StreamMarks() as told:
                    marks.update(told.marks)
                    yield from self._accept_marks(marks)
                case ParentAnswer() as answer:
                    return (yield from self._accept(parent, answer, marks))

    # internal

    def _accept_marks(self, marks: Mapping[MarkKey, int]) -> Procedure[None]:
        """
        Make marks durable, and confirm them.

        The parent took these streams' publishes, and hands them on. An edge that never heard of
        that asks here, and would send them once more.
        """
        node_grant = self._node_grant
        if not self._node.accept_marks(marks):
            yield from warn("zone.marks_refused", zone=node_grant.zone, marks=len(marks))
        yield AwaitStored(seconds=HANDOVER_STEP)
        yield SendMessage(message=ZoneReceived(epoch=node_grant.epoch), seconds=HANDOVER_STEP)

    def _accept(
        self, parent: str, reply: ParentAnswer, marks: Mapping[MarkKey, int]
    ) -> Procedure[JoinEnd]:
        if self._is_strange(reply):
            return ParentStrange(peer="" if reply.who is None else reply.who.node)
        match reply.answer:
            case JoinGranted() as granted:
                self._save_grant(granted)
                self._node.serve_grant()
                self._node.accept_marks(marks)  # a zone that opens just now has none of them
                zone = self._node_grant.zone
                yield from report("join.granted", zone=zone, epoch=granted.epoch)
                yield from self._meet(parent, reply.who)
                return Joined(who=reply.who)
            case ZoneElsewhere(cut=cut):
                yield from self.move(cut)
                return Moved()
            case JoinRefused() as refused:
                return refused

    def _is_strange(self, reply: ParentAnswer) -> bool:
        """
        True if another node than the parent sent this answer.

        A node with the parent's name and zone is still the parent, even if its data was lost.
        """
        known, who = self._node_grant.known_parent, reply.who
        identity = "" if who is None else who.identity
        if known is None or not known.identity or known.identity == identity:
            return False
        if who is not None:
            return (who.node, who.zone) != (known.node, known.zone)
        # An older node names itself only with a grant.
        lineage = reply.answer.lineage if isinstance(reply.answer, JoinGranted) else ()
        return not lineage or (lineage[-1].node, lineage[-1].apex) != (known.node, known.zone)

    def _save_grant(self, granted: JoinGranted) -> None:
        node_grant = self._node_grant
        check_lineage(node_grant, granted.lineage)
        check_ends(node_grant, granted.ended)
        check_below(node_grant.zone or "", granted.below)
        check_epochs(((cut.apex, cut.epoch) for cut in granted.below), node_grant.known_epoch)
        check_near("epoch", granted.epoch, node_grant.epoch)
        check_root(node_grant, granted.root)
        node_grant.grant(granted.epoch, granted.lineage, granted.ended, granted.below)
        node_grant.record_root(granted.root)

    def _meet(self, parent: str, who: AnsweringNode | None) -> Procedure[None]:
        before = self._node_grant.known_parent
        if who is None:
            return
        if before is not None and before.identity not in ("", who.identity):
            yield from warn("parent.replaced", parent=parent, peer=who.node)
        self._node_grant.record_parent(
            KnownParent(grpc=parent, node=who.node, zone=who.zone, identity=who.identity)
        )

    def move(self, parent: ZoneCut) -> Procedure[None]:
        """Save the parent that the present one has named; raises `PeerError` for a lie."""
        check_lineage(self._node_grant, [parent])
        self._node_grant.set_parent(parent)
        yield from report("parent.changed", parent=parent.node, address=parent.grpc)


@attrs.frozen(kw_only=True)
class NewParent:
    """
    A node that claims to be the parent now.

    `epoch`: the epoch of this node's zone as the new parent knows the zone. `ended`: the ends of
    zones around this node's that the new parent knows.
    """

    cut: ZoneCut
    identity: str
    zone: str
    epoch: int
    ended: dict[str, int]


def may_adopt(node_grant: NodeGrant, claim: NewParent, joined: str) -> bool:
    """
    True if the claim to be the parent is valid; raises `PeerError` for a lie.

    `joined`: the name of the parent on the join stream, which is up; "": no stream is up.
    """
    parent, ended = claim.cut, claim.ended
    if node_grant.parent is None or claim.zone != node_grant.zone:
        return False
    check_lineage(node_grant, [parent])
    check_ends(node_grant, ended)
    if node_grant.is_outdated(parent):
        return False
    # The new parent may know an outdated epoch of this zone. The old parent could not report a
    # later one before it was replaced.
    above = node_grant.lineage[-1] if node_grant.lineage else None
    is_over = above is not None and ended.get(above.apex, 0) > above.epoch
    if claim.epoch != node_grant.epoch and not is_over:
        return False
    # The joined parent lives and would announce a change itself; a stranger could call as well.
    return joined in ("", parent.node) or is_over


def announcement_of(node_grant: NodeGrant) -> Announcement:
    """Return what the node has, for its parent."""
    applicant = Applicant(
        node=node_grant.node,
        zone=node_grant.zone or "",
        grpc=node_grant.grpc,
        last_epoch=node_grant.epoch,
        holds=node_grant.holds,
        fenced=node_grant.fenced,
        prepared=node_grant.prepared,
        restored=node_grant.restored,
        below=node_grant.table.below(),
    )
    above = node_grant.lineage[-1] if node_grant.lineage else None
    return Announcement(
        applicant=applicant,
        owns_zone=node_grant.zone is not None,
        granted_by=None if above is None else JournalId(above.apex, above.epoch),
    )


def check_lineage(node_grant: NodeGrant, lineage: Iterable[ZoneCut]) -> None:
    """Check the zones above this node as another node reports them; raises `PeerError`."""
    cuts = list(lineage)
    check_above(node_grant.zone, cuts)
    check_epochs(((cut.apex, cut.epoch) for cut in cuts), node_grant.known_epoch)


def check_ends(node_grant: NodeGrant, ended: Mapping[str, int]) -> None:
    """Check the ends of zones around this node's, as another node reports; raises `PeerError`."""
    check_ended(node_grant.zone, ended)
    check_epochs(ended.items(), node_grant.known_epoch)


def check_root(node_grant: NodeGrant, told: KnownRoot | None) -> None:
    """
    Refuse a root whose epoch is far above the known epochs; raises `PeerError`.

    No true root would be believed after such a lie.
    """
    if told is None:
        return
    heard = node_grant.root
    known = heard.epoch if heard is not None and heard.zone == told.zone else 0
    check_near("root.epoch", told.epoch, max(known, node_grant.known_epoch(told.zone)))
