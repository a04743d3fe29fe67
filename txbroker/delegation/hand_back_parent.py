"""
The parent's half of a hand-back, until the parent serves the zone again.

Theory of operation. The steps, of which only the commit decides (protocol rule 12):

1. The child serves on while its stored journal is staged here.
2. The parent holds the lock on changes of ownership. It receives the rest of the journal, the
   zone's state, and the fence. No other zone changes hands meanwhile.
3. Journal and state become durable here. The child is no member any more.
4. The parent commits: the saved delegation table no longer has the child's cut.
5. The parent absorbs the zone, and reports the commit. The parent serves the zone when the
   connected edges have claimed it, or after `CLAIM_WAIT`.

A zone that would pass a bound here is refused whole, and its child serves on. A failure before the
commit leaves the zone with the child; the caller deletes the staged journal.
No failure after the commit undoes it. A child without an answer asks for the `outcome`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.hand_back_messages import (
    HandBackCommitted,
    HandBackFence,
    HandBackOffer,
    HandBackOutcome,
    HandBackReady,
    JournalCopied,
    SignOfLife,
)
from txbroker.delegation.handover import HandedOverZone, SubtreeMoves, save_received
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.peer_checks import (
    check_ended_parts,
    check_parts,
    check_reached,
    check_subtree,
    epochs_of,
    marks_within,
)
from txbroker.delegation.procedure import (
    AcquireLock,
    AwaitCondition,
    AwaitStored,
    Procedure,
    ReceiveMessage,
    Releasable,
    SendMessage,
    locked,
    report,
)
from txbroker.delegation.timeouts import CLAIM_WAIT, HANDOVER_STEP
from txbroker.delegation.zone_snapshot import ReceivedZone, StagedZone, ZoneSnapshot
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_within


class HandBackAborted(Exception):
    """The hand-back cannot go on; one line with the reason, for the child."""


class ReturnedSubtrees(SubtreeMoves, Protocol):
    """The transfers of subtrees at the node that takes one back."""

    def fence_returned(self, apex: str) -> None:
        """Fence a subtree that has come back, until `release`."""

    def is_claimed(self, apex: str) -> bool:
        """True if all connected edges have claimed what they inherited of the subtree."""

    def release(self, apex: str) -> None:
        """Serve the subtree from now on."""


class ReturnZone(HandedOverZone, Protocol):
    """The zone of the node that takes a subtree back."""

    offset: int

    @property
    def delivered(self) -> int:
        """Return the offset up to which records are delivered."""

    @property
    def subtrees(self) -> ReturnedSubtrees:
        """Return the transfers of the zone's subtrees."""


class ArrivingJournal(Protocol):
    """
    The staged journal of the zone.

    `is_committed`: the zone is this node's, and so is the journal. Another one is of no use.
    """

    is_committed: bool

    @property
    def parts(self) -> list[JournalId]:
        """Return the received parts."""

    def close(self) -> None:
        """Close the files: no batch follows."""


class TakingNode(Protocol):
    """The shell of the node that takes a zone back."""

    def parts_within(self, apex: str) -> frozenset[JournalId]:
        """Return the local journal parts of a zone and of zones below it."""

    def check_room(self, staged_zone: StagedZone) -> None:
        """Refuse a zone with whose state a table here would pass its bound; raises `NoRoom`."""

    def remove_member(self, node: str) -> None:
        """Remove a node from the members: no node relies on it any more."""

    def absorb_zone(self) -> None:
        """Absorb the received state that is committed."""

    def serve_again(self, apex: str, epoch: int) -> None:
        """Announce the end of a delegation to edges, and this node to the nodes below."""

    def end_turn(self) -> None:
        """Write the output of all changes so far."""


class HandBackParent:
    """The hand-backs to one node; `ownership`: the lock on all changes of ownership."""

    def __init__(
        self, *, node_grant: NodeGrant, zone: ReturnZone, node: TakingNode, ownership: Releasable
    ) -> None:
        self._node_grant = node_grant
        self._zone = zone
        self._node = node
        self._ownership = ownership

    def refusal(self, offer: HandBackOffer) -> str | None:
        """Return why this node cannot take the zone back; None if it can."""
        if self._zone.serving and self._is_held(offer):
            return None
        return f"zone {offer.zone!r} at epoch {offer.epoch} is not delegated from here"

    def outcome(self, offer: HandBackOffer) -> Procedure[HandBackOutcome]:
        """
        Return the outcome of a child's hand-back.

        The answer is binding: a hand-back under way may yet commit, so the answer waits for its
        end.
        """
        yield AcquireLock(lock=self._ownership)
        try:
            return self._outcome(offer)
        finally:
            self._ownership.release()

    def take_back(self, offer: HandBackOffer, journal: ArrivingJournal) -> Procedure[None]:
        """
        Take the zone back; return when the zone is served.

        Raises `HandBackAborted`, `NoRoom`, and `PeerError` for a lie. The caller deletes a staged
        journal that is not committed.
        """
        yield from self._receive_journal(offer)
        yield from locked(self._ownership, self._receive_rest(offer, journal))

    # internal

    def _is_held(self, offer: HandBackOffer) -> bool:
        held = self._node_grant.table.get(offer.zone)
        return held is not None and (held.cut.node, held.cut.epoch) == (offer.node, offer.epoch)

    def _outcome(self, offer: HandBackOffer) -> HandBackOutcome:
        if not self._zone.serving:
            return HandBackOutcome.UNKNOWN
        if self._is_held(offer):
            return HandBackOutcome.HELD
        if self._node_grant.table.epoch_of(offer.zone) > offer.epoch:
            return HandBackOutcome.ENDED
        return HandBackOutcome.UNKNOWN

    def _receive_journal(self, offer: HandBackOffer) -> Procedure[None]:
        ready = HandBackReady(have=self._node.parts_within(offer.zone))
        yield SendMessage(message=ready, seconds=HANDOVER_STEP)
        while isinstance(message := (yield from _next()), SignOfLife):
            pass
        if not isinstance(message, JournalCopied):
            raise HandBackAborted("the journal comes first")

    def _receive_rest(self, offer: HandBackOffer, journal: ArrivingJournal) -> Procedure[None]:
        staged_zone, end = yield from self._receive_state(offer, journal)
        yield AwaitStored(seconds=HANDOVER_STEP)
        journal.close()
        # A leaving child is no member, and no node relies on it any more. A child that stays after
        # a failed hand-back announces itself again.
        self._node.remove_member(offer.node)
        yield from save_received(self._node_grant, staged_zone)
        yield AwaitStored(seconds=HANDOVER_STEP)
        if self.refusal(offer) is not None:
            raise HandBackAborted("the parent has lost its own zone")
        # Behind all waiting: a link that opens meanwhile takes room as well.
        self._node.check_room(staged_zone)
        self._node_grant.commit_hand_back(offer.zone, self._passage(offer, end))
        journal.is_committed = True
        yield from self._serve(offer)

    def _receive_state(
        self, offer: HandBackOffer, journal: ArrivingJournal
    ) -> Procedure[tuple[StagedZone, int]]:
        """Receive the zone's state; return the last offset of the child's part too."""
        refusal = self.refusal(offer)
        if refusal is not None:
            raise HandBackAborted(refusal)
        yield SendMessage(message=HandBackReady(), seconds=HANDOVER_STEP)
        received_zone = ReceivedZone()
        while not isinstance(message := (yield from _next()), HandBackFence):
            match message:
                case ZoneSnapshot():
                    received_zone.merge(message)
                case SignOfLife():
                    # A child that idles would block every other change of ownership, here and at
                    # the nodes below.
                    raise PeerError("a hand-back does not wait behind its journal")
                case _:
                    raise HandBackAborted("a hand-back ends with its fence")
        return self._checked(offer, journal, received_zone, message), message.offset

    def _checked(
        self,
        offer: HandBackOffer,
        journal: ArrivingJournal,
        received_zone: ReceivedZone,
        fence: HandBackFence,
    ) -> StagedZone:
        subtree, needs = fence.subtree, fence.needs
        check_subtree(offer.zone, subtree, self._node_grant.known_epoch)
        check_parts(offer.zone, (part for places in needs.values() for part in places))
        check_ended_parts(offer.zone, journal.parts, self._known_epochs(subtree))
        check_reached(subtree.passages, LogPosition(self._part, self._zone.offset))
        received_zone.marks = marks_within(offer.zone, received_zone.marks)
        # This node already knows the transitions of the zones around: the child has them from here.
        transitions = tuple(one for one in subtree.passages if is_within(one.apex, offer.zone))
        return StagedZone(
            apex=offer.zone,
            epoch=offer.epoch,
            incoming=received_zone,
            subtree=attrs.evolve(subtree, passages=transitions),
            needs=needs,
        )

    def _known_epochs(self, subtree: DelegationState) -> Callable[[str], int]:
        """
        Return a lookup of each zone's last epoch, known to this node or reported by the child.
        """
        told: dict[str, int] = {}
        for apex, epoch in epochs_of(subtree):
            told[apex] = max(told.get(apex, 0), epoch)
        return lambda apex: max(told.get(apex, 0), self._node_grant.table.epoch_of(apex))

    @property
    def _part(self) -> JournalId:
        return JournalId(self._zone.apex, self._zone.epoch)

    def _passage(self, offer: HandBackOffer, end: int) -> EpochTransition:
        left = LogPosition(JournalId(offer.zone, offer.epoch), end)
        entered = LogPosition(self._part, self._zone.delivered)
        return EpochTransition(apex=offer.zone, left=left, entered=entered)

    def _serve(self, offer: HandBackOffer) -> Procedure[None]:
        """Serve the zone after the commit; no failure from here on undoes the commit."""
        subtrees, apex = self._zone.subtrees, offer.zone
        self._node.absorb_zone()
        subtrees.fence_returned(apex)
        try:
            self._node.serve_again(apex, offer.epoch)
            yield from report("handback.committed", zone=apex, peer=offer.node)
            epoch = self._node_grant.table.epoch_of(apex)
            yield SendMessage(message=HandBackCommitted(epoch=epoch), seconds=HANDOVER_STEP)
            yield AwaitCondition(condition=lambda: subtrees.is_claimed(apex), seconds=CLAIM_WAIT)
        finally:
            subtrees.release(apex)
            self._node.end_turn()


def _next() -> Procedure[object]:
    message: object = yield ReceiveMessage(seconds=HANDOVER_STEP)
    if message is None:
        raise ConnectionError("the child has broken it off")
    return message
