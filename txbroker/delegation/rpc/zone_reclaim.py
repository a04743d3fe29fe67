"""
SHELL: this node as a parent from which an operator reclaims a dead node's zone.

The node is dead as far as any other node can observe. Records that only the dead node had are cut
off and stay with it as a divergent branch (protocol rule 15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio

from txbroker.authority.authority import Authority
from txbroker.delegation.rpc.join_server import JoinServer
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.model.epoch_transition import FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2

log = get_logger()


class ReclaimError(Exception):
    """The zone cannot be reclaimed; one line with the reason. No state has changed."""


class ZoneReclaim:
    """Reclaims zones by command; `ownership` is the node's lock on all changes of ownership."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        authority: Authority | None,
        parent: JoinServer,
        channels: Channels,
        ownership: asyncio.Lock,
        on_granted: Callable[[], None],
    ) -> None:
        self._node_grant = node_grant
        self._authority = authority
        self._parent = parent
        self._channels = channels
        self._ownership = ownership
        self._on_granted = on_granted

    async def reclaim(self, zone: str, epoch: int) -> int:
        """
        Reclaim a dead node's zone; return the epoch at which this node serves it from now on.

        `epoch` is the epoch that the operator has seen. Raises `ReclaimError`, `StoreError`.
        """
        async with self._ownership:
            if self._node_grant.restored and zone == self._node_grant.zone:
                return self._insist()
            if self._authority is None or not self._authority.serving:
                raise ReclaimError(f"node {self._node_grant.node!r} serves no zone now")
            cut = self._delegated(zone, epoch)
            await self._check_dead(cut)
            if not self._authority.subtrees.may_reclaim(zone):
                raise ReclaimError(
                    f"node {self._node_grant.node!r} keeps the needs of as many edges as it can; "
                    "let"
                    " lost ones go: txbroker forget"
                )
            table = self._node_grant.table
            offset = self._authority.delivered
            own = JournalId(self._authority.apex, self._authority.epoch)
            table.reclaim(zone, offset)
            table.record_transition(
                EpochTransition(
                    apex=zone,
                    left=LogPosition(JournalId(zone, epoch), FOREVER),
                    entered=LogPosition(own, offset),
                )
            )
            self._node_grant.save()
            self._authority.subtrees.reclaim(zone, epoch)
            self._parent.serve_below(zone)
            log.warning("zone.reclaimed", zone=zone, peer=cut.node, epoch=epoch)
            return table.epoch_of(zone)

    def _insist(self) -> int:
        """
        Serve the node's own zone from a restored copy, at an operator's command.

        The parent would know the zone's later history, but the parent is away. The operator
        confirms that no newer data exists.
        """
        self._node_grant.insist()
        log.warning("zone.forced", zone=self._node_grant.zone, epoch=self._node_grant.epoch)
        self._on_granted()
        return self._node_grant.epoch

    def _delegated(self, zone: str, epoch: int) -> ZoneCut:
        held = self._node_grant.table.get(zone)
        if held is None:
            above = self._node_grant.table.lookup(zone)
            if above is not None:
                raise ReclaimError(
                    f"zone {zone!r} lies below zone {above.apex!r} of node {above.node!r}; ask that"
                    f" node for it: {above.grpc}"
                )
            raise ReclaimError(f"zone {zone!r} is not delegated from here; see `txbroker tree`")
        if held.cut.epoch != epoch:
            raise ReclaimError(
                f"zone {zone!r} is delegated at epoch {held.cut.epoch}, not {epoch}; look again"
                " with `txbroker tree`"
            )
        return held.cut

    async def _check_dead(self, cut: ZoneCut) -> None:
        """
        Refuse the reclaim of a living node; raises `ReclaimError`.

        A node lives if it has joined here, or serves its zone without this parent.
        """
        is_alive = self._parent.is_alive(cut.node)
        if not is_alive:
            try:
                reply = await self._channels.stub(cut.grpc, cut.node).Status(
                    control_pb2.StatusRequest(), timeout=CALL_TIMEOUT
                )
            except grpc.aio.AioRpcError:
                return
            is_alive = reply.serving and (reply.node, reply.zone.apex) == (cut.node, cut.apex)
        if is_alive:
            raise ReclaimError(
                f"node {cut.node!r} at {cut.grpc} is alive and serves zone {cut.apex!r}; let it"
                f" give the zone back with: txbroker retire {cut.grpc} (or stop it first)"
            )
