"""
The child's half of a hand-back (`txbroker retire`), until the zone is the parent's.

Theory of operation. The steps, of which only the parent's commit decides (protocol rule 12):

1. The stored journal is copied, and the zone is served meanwhile.
2. The node's other roles move away: clients, outboxes, sessions.
3. The zone moves under two locks. No ownership changes here or below, and no request to the parent
   overtakes the hand-back. Both locks are held before the parent takes its own lock. A join in
   between would wait for the parent, and the parent for this node, until one gives up. The node
   leaves the members, and saves that it is fenced.
4. Bulk copy, fence, rest, as in a handover; then the rest of the journal, and the fence.
5. The parent reports its commit, and the node saves that the zone is lost.

From the fence on only the parent knows the outcome. So the child asks the parent until the parent
answers. A child that dies meanwhile asks at its next start. A failure before the fence rolls back:
the child serves the zone on, and is a member again.
"""

from __future__ import annotations

from typing import Protocol

from txbroker.delegation.hand_back_messages import (
    HandBackCommitted,
    HandBackFence,
    HandBackOffer,
    HandBackOutcome,
    HandBackReady,
    JournalCopied,
    JournalCopy,
    JournalRest,
)
from txbroker.delegation.handover import (
    HandedOverZone,
    ZoneSource,
    send_bulk,
    send_rest,
)
from txbroker.delegation.join_rules import JoinRefused
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.procedure import (
    AskOutcome,
    AwaitCondition,
    MoveRoles,
    Procedure,
    ReceiveMessage,
    Releasable,
    SendMessage,
    locked,
    report,
    report_unsaved,
    warn,
)
from txbroker.delegation.timeouts import ANNOUNCE_STEP, CLAIM_WAIT, HANDOVER_STEP, LONGEST_PAUSE
from txbroker.delegation.zone_snapshot import Needs
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId

BROKEN = (OSError, PeerError)
"""Errors of a stream; messages behind a lie are worthless."""


class RetireError(Exception):
    """The zone cannot be given back; one line with the reason. No promise to others is broken."""


class RetiringNode(Protocol):
    """The shell of the node that gives its zone back."""

    @property
    def journal_size(self) -> int:
        """Return the bytes of journal that may be sent."""

    def needs(self) -> Needs:
        """Return the offsets of the zone's journal that edges still need."""

    def resign(self) -> None:
        """Remove this node from the members."""

    def stay(self) -> None:
        """Undo the departure: the node accepts clients again and is a member."""

    def end_turn(self) -> None:
        """Write the output of all changes so far."""


class HandBackChild:
    """
    The procedure of one hand-back.

    `ownership`: the lock on all changes of ownership. `requests`: the lock on requests to the
    parent.
    """

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        zone: HandedOverZone,
        node: RetiringNode,
        ownership: Releasable,
        requests: Releasable,
    ) -> None:
        self._node_grant = node_grant
        self._zone = zone
        self._node = node
        self._ownership = ownership
        self._requests = requests

    def give_back(self) -> Procedure[None]:
        """Give the zone to the parent; return after its commit; raises `RetireError`."""
        is_done = False
        try:
            have = yield from self._offer()
            yield SendMessage(message=JournalCopy(have=have), seconds=HANDOVER_STEP)
            yield MoveRoles(heir=self._node_grant.lineage[-1].node)
            yield from locked(self._requests, locked(self._ownership, self._move_zone()))
            is_done = True
        finally:
            if not is_done:
                self._node.stay()

    # internal

    def _offer(self) -> Procedure[frozenset[JournalId]]:
        node_grant = self._node_grant
        offer = HandBackOffer(
            node=node_grant.node,
            zone=node_grant.cut.apex,
            epoch=node_grant.epoch,
            journal=self._node.journal_size,
        )
        yield SendMessage(message=offer, seconds=ANNOUNCE_STEP)
        return (yield from _ready()).have

    def _move_zone(self) -> Procedure[None]:
        subtrees, apex = self._zone.subtrees, self._zone.apex
        yield SendMessage(message=JournalCopied(), seconds=HANDOVER_STEP)
        yield from _ready()
        # Publishes that edges inherited here and have not claimed yet would not move along.
        yield AwaitCondition(condition=lambda: not subtrees.awaits_claims(apex), seconds=CLAIM_WAIT)
        self._node.resign()
        outgoing = subtrees.prepare(apex)
        try:
            self._node_grant.set_fenced(True)
            yield from send_bulk(outgoing)
            offset = subtrees.fence(outgoing)
            if not (yield from self._is_committed(outgoing, offset)):
                raise RetireError("the parent did not take the zone back")
        except (RetireError, StoreError, *BROKEN):
            yield from self._roll_back(outgoing)
            raise
        yield from self._complete(outgoing)

    def _is_committed(self, outgoing: ZoneSource, offset: int) -> Procedure[bool]:
        """Send all that is left; True if the parent, possibly another node by now, commits."""
        try:
            yield from send_rest(outgoing)
            yield SendMessage(message=JournalRest(), seconds=HANDOVER_STEP)
            subtree = self._node_grant.table.subtree(self._zone.apex)
            fence = HandBackFence(offset=offset, subtree=subtree, needs=self._node.needs())
            yield SendMessage(message=fence, seconds=HANDOVER_STEP)
            reply = yield ReceiveMessage(seconds=HANDOVER_STEP)
        except BROKEN:
            reply = None
        match reply:
            case HandBackCommitted():
                return True
            case JoinRefused(reason=reason):
                raise RetireError(reason)  # the parent's word: it has not committed
        cut = self._node_grant.cut
        yield from warn("handback.in_doubt", zone=cut.apex, parent=self._node_grant.parent)
        offer = HandBackOffer(node=cut.node, zone=cut.apex, epoch=cut.epoch)
        while True:
            outcome: HandBackOutcome = yield AskOutcome(offer=offer)
            if outcome is not HandBackOutcome.UNKNOWN:
                return outcome is HandBackOutcome.ENDED
            yield AwaitCondition(condition=lambda: False, seconds=LONGEST_PAUSE)

    def _roll_back(self, outgoing: ZoneSource) -> Procedure[None]:
        self._zone.subtrees.roll_back(outgoing)
        try:
            self._node_grant.set_fenced(False)
        except StoreError as error:
            # The next life asks the parent before it serves, and the parent renews the grant.
            yield from report_unsaved(error)
        self._node.end_turn()

    def _complete(self, outgoing: ZoneSource) -> Procedure[None]:
        epoch = self._node_grant.epoch
        try:
            self._node_grant.record_loss()
        except StoreError as error:
            # The next life asks the parent before it serves, and the parent hands the zone over.
            yield from report_unsaved(error)
        self._zone.subtrees.complete(outgoing)
        self._node.end_turn()
        yield from report("zone.retired", zone=self._zone.apex, epoch=epoch)


def _ready() -> Procedure[HandBackReady]:
    reply = yield ReceiveMessage(seconds=HANDOVER_STEP)
    match reply:
        case HandBackReady():
            return reply
        case JoinRefused(reason=reason):
            raise RetireError(reason)
    raise RetireError("the parent closed the call")
