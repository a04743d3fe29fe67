"""
The handover of a zone from the parent, which serves it, to the child: both procedures.

Theory of operation. The steps stand in the order of protocol rule 12:

| parent: `HandoverParent.hand_over` | child: `receive_zone` |
|---|---|
| awaits claims of an earlier handover | |
| sends the bulk of the retained messages, and serves on | keeps the parts in memory |
| fences the zone: no publish enters from here on | |
| awaits that all accepted publishes are durable and delivered | |
| sends the rest, then the fence | checks the fence against its own epochs |
| | checks that no table passes its bound |
| | makes the state durable |
| reads "received" | sends "received" |
| commits: the saved delegation table has the child's cut | |
| announces the cut to edges, refers the children below | |
| grants | opens the zone |

Only the commit decides. A failure before the commit rolls back. Then the parent serves the zone on,
and the child's state is of no use. After the commit the parent never serves the zone. A child
without an answer asks again with the `prepared` epoch, and gets its grant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import attrs

from txbroker.delegation.delegation_table import Delegation
from txbroker.delegation.join_messages import HandoverFence, ZoneReceived
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.peer_checks import check_near, check_predecessor, check_subtree
from txbroker.delegation.procedure import (
    AwaitCondition,
    AwaitSettled,
    Procedure,
    ReceiveMessage,
    SaveReceivedZone,
    SendMessage,
    report,
    warn,
)
from txbroker.delegation.timeouts import CLAIM_WAIT, HANDOVER_STEP
from txbroker.delegation.zone_snapshot import ReceivedZone, StagedZone, ZoneSnapshot
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut


class ZoneSource(Protocol):
    """The state of a zone that moves away."""

    def bulk(self) -> Iterator[ZoneSnapshot]:
        """Yield the present retained messages; later changes come with `rest`."""

    def rest(self) -> Iterator[ZoneSnapshot]:
        """Yield all that `bulk` lacks; call only after the fence."""


class SubtreeMoves(Protocol):
    """The transfers of subtrees at the zone's present owner."""

    def awaits_claims(self, apex: str) -> bool:
        """True if edges have unclaimed inheritances of the subtree, or around it."""

    def prepare(self, apex: str) -> ZoneSource:
        """Begin a handover of the subtree, which stays served until the fence."""

    def fence(self, outgoing: Any) -> int:
        """Fence the subtree; return the offset of the last record before the fence."""

    def roll_back(self, outgoing: Any) -> None:
        """Roll the handover back; this node serves the subtree on."""

    def complete(self, outgoing: Any) -> None:
        """Complete the handover after the commit, and announce the cut to every edge."""


class HandedOverZone(Protocol):
    """The zone of the node that hands a subtree over."""

    apex: str
    epoch: int
    serving: bool

    @property
    def subtrees(self) -> SubtreeMoves:
        """Return the transfers of the zone's subtrees."""


class HandoverNode(Protocol):
    """The shell of the node that hands a subtree over."""

    def end_turn(self) -> None:
        """Write the output of all changes so far."""

    def refer_child(self, node: str, parent: ZoneCut) -> None:
        """Name another parent to a child that has joined here."""


class ReceivingNode(Protocol):
    """The shell of the node that receives a zone."""

    def check_room(self, staged_zone: StagedZone) -> None:
        """Refuse a zone with whose state a table here would pass its bound; raises `NoRoom`."""


class HandoverParent:
    """The parent's half. The caller has the lock on all changes of ownership."""

    def __init__(self, *, node_grant: NodeGrant, zone: HandedOverZone, node: HandoverNode) -> None:
        self._node_grant = node_grant
        self._zone = zone
        self._node = node

    def hand_over(self, cut: ZoneCut) -> Procedure[None]:
        """
        Hand the zone of `cut` over to its node; return after the commit.

        Each error is one of before the commit, and has rolled the handover back.
        """
        subtrees, peer = self._zone.subtrees, {"zone": cut.apex, "peer": cut.node}
        # Publishes that edges inherited here and have not claimed yet would not move along.
        yield AwaitCondition(
            condition=lambda: not subtrees.awaits_claims(cut.apex), seconds=CLAIM_WAIT
        )
        outgoing = subtrees.prepare(cut.apex)
        yield from report("handover.started", **peer, epoch=cut.epoch)
        try:
            yield from send_bulk(outgoing)
            offset = subtrees.fence(outgoing)
            yield from send_rest(outgoing)
            transition = yield from self._confirm(cut, offset)
            moved = self._commit(cut, transition)
        except BaseException as error:
            subtrees.roll_back(outgoing)
            if not isinstance(error, GeneratorExit):  # a dropped generator must not yield
                yield from warn("handover.rolled_back", **peer)
            raise
        subtrees.complete(outgoing)
        self._node.end_turn()
        yield from report("handover.committed", **peer, epoch=cut.epoch)
        for entry in moved:
            self._node.refer_child(entry.cut.node, cut)

    def _confirm(self, cut: ZoneCut, offset: int) -> Procedure[EpochTransition]:
        """
        Send the fence; return the transition to the child's journal when the child has all.
        """
        left = LogPosition(JournalId(self._zone.apex, self._zone.epoch), offset)
        entered = LogPosition(JournalId(cut.apex, cut.epoch), 0)
        transition = EpochTransition(apex=cut.apex, left=left, entered=entered)
        subtree = self._node_grant.table.subtree(cut.apex)
        subtree = attrs.evolve(subtree, passages=(*subtree.passages, transition))
        fence = HandoverFence(left=left, epoch=cut.epoch, subtree=subtree)
        yield SendMessage(message=fence, seconds=HANDOVER_STEP)
        answer = yield ReceiveMessage(seconds=HANDOVER_STEP)
        if answer != ZoneReceived(epoch=cut.epoch):
            raise ConnectionError("the child did not confirm")
        return transition

    def _commit(self, cut: ZoneCut, transition: EpochTransition) -> tuple[Delegation, ...]:
        """Make the delegation durable; return the delegations that move along."""
        node_grant = self._node_grant
        moved = node_grant.table.subtree(cut.apex).delegations
        if not self._zone.serving:
            raise ConnectionError("the parent has lost its own zone")
        below = [known for entry in moved for known in (entry.cut, *entry.below)]
        node_grant.table.commit(cut, below)
        node_grant.table.record_transition(transition)
        node_grant.save()
        return moved


def send_bulk(outgoing: ZoneSource) -> Procedure[None]:
    """Send the present state of a zone, which is served on."""
    for part in outgoing.bulk():
        yield SendMessage(message=part, seconds=HANDOVER_STEP)


def send_rest(outgoing: ZoneSource) -> Procedure[None]:
    """Send the changes of a fenced zone since the bulk, once they are durable and delivered."""
    yield AwaitSettled()
    for part in outgoing.rest():
        yield SendMessage(message=part, seconds=HANDOVER_STEP)


def receive_zone(
    node_grant: NodeGrant, node: ReceivingNode, received_zone: ReceivedZone, fence: HandoverFence
) -> Procedure[None]:
    """
    Make the zone's state durable at the child, and confirm.

    Raises `PeerError` for a lie, and `NoRoom` for a zone that would pass a bound.

    The parent must not hear "received" earlier: after its commit no other node has the state.
    """
    apex, left = node_grant.cut.apex, fence.left
    check_subtree(apex, fence.subtree, node_grant.known_epoch)
    if fence.epoch <= node_grant.epoch:
        raise PeerError(f"epoch {fence.epoch} is not above {node_grant.epoch}, which was held")
    check_near("grant", fence.epoch, node_grant.epoch)
    check_predecessor(JournalId(apex, fence.epoch), left, node_grant.known_epoch)
    received_zone.predecessor = (left.part.zone, left.part.epoch, left.offset)
    staged_zone = StagedZone(
        apex=apex, epoch=fence.epoch, incoming=received_zone, subtree=fence.subtree
    )
    node.check_room(staged_zone)
    yield from save_received(node_grant, staged_zone)
    yield from report("handover.received", zone=node_grant.zone, epoch=fence.epoch)
    yield SendMessage(message=ZoneReceived(epoch=fence.epoch), seconds=HANDOVER_STEP)


def save_received(node_grant: NodeGrant, staged_zone: StagedZone) -> Procedure[None]:
    """
    Make a zone's complete received state durable; raises `StoreError`, `TimeoutError`.

    The disk has one place for received state: the store must absorb an earlier zone first.
    """
    is_free = yield AwaitCondition(
        condition=lambda: node_grant.absorbing is None, seconds=HANDOVER_STEP
    )
    if not is_free:
        raise TimeoutError("the store has not taken in an earlier zone yet")
    yield SaveReceivedZone(zone=staged_zone)
