"""
The reclaim of a dead node's zone by its parent, at an operator's command.

Theory of operation. The steps, all of them under the node's lock on changes of ownership:

1. The operator must have seen the present epoch of the delegation.
2. The node must be dead: it has not joined here, and does not answer as the zone's server.
3. The parent commits: the saved delegation table has ended the epoch. The table names the offset of
   the parent's journal behind which the zone is the parent's. The parent serves the zone from an
   empty state, and announces that to edges and to the nodes below.

Records that only the dead node had are cut off. These records stay with the node as a divergent
branch (protocol rule 15). A reclaim of the node's own zone serves a restored copy: the parent,
which would know better, is away.
"""

from __future__ import annotations

from typing import Protocol

from txbroker.delegation.handover import HandedOverZone, SubtreeMoves
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.procedure import AskStatus, Procedure, Releasable, locked, warn
from txbroker.delegation.tree_walk import NodeAnswer
from txbroker.model.epoch_transition import FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut


class ReclaimError(Exception):
    """The zone cannot be reclaimed; one line with the reason. No state has changed."""


class ReclaimedSubtrees(SubtreeMoves, Protocol):
    """The transfers of subtrees at the node that reclaims one."""

    def may_reclaim(self, apex: str) -> bool:
        """True if the needs of the subtree's edges pass no bound here."""

    def reclaim(self, apex: str, epoch: int) -> None:
        """Resume a reclaimed subtree, whose last owner had it at `epoch`."""


class ReclaimingZone(HandedOverZone, Protocol):
    """The zone of the node that reclaims a subtree."""

    @property
    def delivered(self) -> int:
        """Return the offset up to which records are delivered."""

    @property
    def subtrees(self) -> ReclaimedSubtrees:
        """Return the transfers of the zone's subtrees."""


class ReclaimingNode(Protocol):
    """The shell of the node that reclaims a zone."""

    def is_alive(self, node: str) -> bool:
        """True if the node's join stream is up."""

    def serve_below(self, apex: str) -> None:
        """Announce the delegations below an apex to edges, and this node to their nodes."""

    def serve_grant(self) -> None:
        """Serve the own zone at the epoch of the node grant, from this turn on."""


class Reclaim:
    """The reclaims of one node; `zone` is None if the node owns no zone."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        zone: ReclaimingZone | None,
        node: ReclaimingNode,
        ownership: Releasable,
    ) -> None:
        self._node_grant = node_grant
        self._zone = zone
        self._node = node
        self._ownership = ownership

    def reclaim(self, apex: str, epoch: int) -> Procedure[int]:
        """
        Reclaim a dead node's zone; return the epoch at which this node serves it from now on.

        `epoch` is the epoch that the operator has seen. Raises `ReclaimError`, `StoreError`.
        """
        return locked(self._ownership, self._reclaim(apex, epoch))

    # internal

    def _reclaim(self, apex: str, epoch: int) -> Procedure[int]:
        node_grant, zone = self._node_grant, self._zone
        if node_grant.restored and apex == node_grant.zone:
            return (yield from self._insist())
        if zone is None or not zone.serving:
            raise ReclaimError(f"node {node_grant.node!r} serves no zone now")
        cut = self._delegated(apex, epoch)
        yield from self._check_dead(cut)
        if not zone.subtrees.may_reclaim(apex):
            raise ReclaimError(
                f"node {node_grant.node!r} keeps the needs of as many edges as it can; let lost "
                "ones"
                " go: txbroker forget"
            )
        self._commit(cut, zone)
        zone.subtrees.reclaim(apex, epoch)
        self._node.serve_below(apex)
        yield from warn("zone.reclaimed", zone=apex, peer=cut.node, epoch=epoch)
        return node_grant.table.epoch_of(apex)

    def _insist(self) -> Procedure[int]:
        """
        Serve the node's own zone from a restored copy, at an operator's command.

        The parent would know the zone's later history, but the parent is away. The operator
        confirms that no newer data exists.
        """
        node_grant = self._node_grant
        node_grant.insist()
        yield from warn("zone.forced", zone=node_grant.zone, epoch=node_grant.epoch)
        self._node.serve_grant()
        return node_grant.epoch

    def _delegated(self, apex: str, epoch: int) -> ZoneCut:
        table = self._node_grant.table
        held = table.get(apex)
        if held is None:
            above = table.lookup(apex)
            if above is not None:
                raise ReclaimError(
                    f"zone {apex!r} lies below zone {above.apex!r} of node {above.node!r}; ask that"
                    f" node for it: {above.grpc}"
                )
            raise ReclaimError(f"zone {apex!r} is not delegated from here; see `txbroker tree`")
        if held.cut.epoch != epoch:
            raise ReclaimError(
                f"zone {apex!r} is delegated at epoch {held.cut.epoch}, not {epoch}; look again"
                " with `txbroker tree`"
            )
        return held.cut

    def _check_dead(self, cut: ZoneCut) -> Procedure[None]:
        """
        Refuse the reclaim of a living node; raises `ReclaimError`.

        A node lives if it has joined here, or serves its zone without this parent.
        """
        if not self._node.is_alive(cut.node):
            answer: NodeAnswer | None = yield AskStatus(cut=cut)
            if answer is None or not answer.serves:
                return
            if (answer.own.node, answer.own.apex) != (cut.node, cut.apex):
                return
        raise ReclaimError(
            f"node {cut.node!r} at {cut.grpc} is alive and serves zone {cut.apex!r}; let it"
            f" give the zone back with: txbroker retire {cut.grpc} (or stop it first)"
        )

    def _commit(self, cut: ZoneCut, zone: ReclaimingZone) -> None:
        node_grant, offset = self._node_grant, zone.delivered
        left = LogPosition(JournalId(cut.apex, cut.epoch), FOREVER)
        entered = LogPosition(JournalId(zone.apex, zone.epoch), offset)
        node_grant.table.reclaim(cut.apex, offset)
        node_grant.table.record_transition(
            EpochTransition(apex=cut.apex, left=left, entered=entered)
        )
        node_grant.save()
