"""
SHELL: this node as a parent from whom an operator reclaims a dead node's zone.

The node is dead as far as anybody can see; what only it had is cut off, and stays with it as a
branch of its own (protocol rule 15).
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
    """The zone cannot be taken back; one line why. Nothing has changed."""


class ZoneReclaim:
    """`ownership` is the node's lock on all that changes who owns what."""

    def __init__(
        self,
        *,
        standing: NodeGrant,
        authority: Authority | None,
        parent: JoinServer,
        channels: Channels,
        ownership: asyncio.Lock,
        on_granted: Callable[[], None],
    ) -> None:
        self._standing = standing
        self._authority = authority
        self._parent = parent
        self._channels = channels
        self._ownership = ownership
        self._on_granted = on_granted

    async def reclaim(self, zone: str, epoch: int) -> int:
        """
        Take a dead node's zone; returns the epoch from which on it is served here.

        `epoch` is the one that the operator has seen. Raises `ReclaimError` and `StoreError`.
        """
        async with self._ownership:
            if self._standing.restored and zone == self._standing.zone:
                return self._insist()
            if self._authority is None or not self._authority.serving:
                raise ReclaimError(f"node {self._standing.node!r} serves no zone now")
            cut = self._delegated(zone, epoch)
            await self._check_dead(cut)
            table = self._standing.table
            offset = self._authority.delivered
            own = JournalId(self._authority.apex, self._authority.epoch)
            table.reclaim(zone, offset)
            table.note(
                EpochTransition(
                    apex=zone,
                    left=LogPosition(JournalId(zone, epoch), FOREVER),
                    entered=LogPosition(own, offset),
                )
            )
            self._standing.save()
            self._authority.subtrees.reclaim(zone, epoch)
            self._parent.serve_below(zone)
            log.warning("zone.reclaimed", zone=zone, peer=cut.node, epoch=epoch)
            return table.epoch_of(zone)

    def _insist(self) -> int:
        """
        The node's own zone: its data is a copy, and its parent, which would say what became of the
        zone since, is away. What the copy has is all that there is, the operator says.
        """
        self._standing.insist()
        log.warning("zone.insisted", zone=self._standing.zone, epoch=self._standing.epoch)
        self._on_granted()
        return self._standing.epoch

    def _delegated(self, zone: str, epoch: int) -> ZoneCut:
        held = self._standing.table.get(zone)
        if held is None:
            above = self._standing.table.lookup(zone)
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
        """Raises `ReclaimError` where the node lives: joined here, or serving without us."""
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
