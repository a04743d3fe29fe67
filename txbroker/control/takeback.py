"""
SHELL: this node as a parent that takes a zone back: given by its child, or reclaimed from it.

A child gives: its zone's state is durable here before the commit, and the commit on disk is what
decides (protocol rule 12). An operator reclaims: the node is dead as far as anybody can see, what
only it had is cut off, and stays with it as a branch of its own (rule 15).
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from txbroker.aio import wait_until
from txbroker.authority.authority import Authority
from txbroker.authority.handover import Incoming
from txbroker.control.channels import CALL_TIMEOUT, Channels
from txbroker.control.convert import snapshot_from_wire, subtree_from_wire
from txbroker.control.copying import receive
from txbroker.control.parent import Parent
from txbroker.control.streams import read, unsaved
from txbroker.control.times import CLAIM_WAIT, HANDOVER_STEP
from txbroker.delegation.cut import Cut
from txbroker.errors import StoreError
from txbroker.holding import Holding
from txbroker.standing import Standing
from txbroker.store.incoming import Arrived
from txbroker.telemetry import get_logger
from txbroker.turn import Turn
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import HandBackReply, HandBackRequest, OutcomeReply

log = get_logger()

HandBackContext = grpc.aio.ServicerContext[HandBackRequest, HandBackReply]


class ReclaimError(Exception):
    """The zone cannot be taken back; one line why. Nothing has changed."""


class TakeBack:
    """The way back; `ownership` is the node's lock on all that changes who owns what."""

    def __init__(
        self,
        *,
        standing: Standing,
        authority: Authority | None,
        holding: Holding | None,
        parent: Parent,
        channels: Channels,
        turn: Turn,
        ownership: asyncio.Lock,
    ) -> None:
        self._standing = standing
        self._authority = authority
        self._holding = holding
        self._parent = parent
        self._channels = channels
        self._turn = turn
        self._ownership = ownership

    # from the servicer

    async def hand_back(self, context: HandBackContext) -> None:
        """A child gives its zone back."""
        first = await read(context, HANDOVER_STEP)
        if first is None or first.WhichOneof("kind") != "begin":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "begin first")
        try:
            async with self._ownership:
                await self._hand_back(first.begin, context)
        except StoreError as error:
            await unsaved(error, context)

    async def outcome(self, request: control_pb2.OutcomeRequest) -> OutcomeReply:
        """
        What became of a child's hand-back.

        The answer binds: it waits for a hand-back that is under way, which may yet commit.
        """
        async with self._ownership:
            if self._serving() is None:
                return OutcomeReply(outcome=OutcomeReply.UNKNOWN)
            held = self._standing.table.get(request.zone)
            if held is not None and (held.cut.node, held.cut.epoch) == (
                request.node,
                request.epoch,
            ):
                return OutcomeReply(outcome=OutcomeReply.HELD)
            if self._standing.table.epoch_of(request.zone) > request.epoch:
                return OutcomeReply(outcome=OutcomeReply.ENDED)
            return OutcomeReply(outcome=OutcomeReply.UNKNOWN)

    async def reclaim(self, zone: str, epoch: int) -> int:
        """
        Take a dead node's zone; returns the epoch from which on it is served here.

        `epoch` is the one that the operator has seen. Raises `ReclaimError` and `StoreError`.
        """
        async with self._ownership:
            authority = self._serving()
            if authority is None:
                raise ReclaimError(f"node {self._standing.node!r} serves no zone now")
            cut = self._delegated(zone, epoch)
            await self._check_dead(cut)
            table = self._standing.table
            table.reclaim(zone)
            self._standing.save()
            self._serve(authority, cut)
            log.warning("zone.reclaimed", zone=zone, peer=cut.node, epoch=cut.epoch)
            return table.epoch_of(zone)

    # internal: given back

    def _serving(self) -> Authority | None:
        authority = self._authority
        return authority if authority is not None and authority.serving else None

    async def _hand_back(self, begin: control_pb2.HandBackBegin, context: HandBackContext) -> None:
        held = self._standing.table.get(begin.zone)
        authority = self._serving()
        claim = (begin.node, begin.epoch)
        if (
            authority is None
            or self._holding is None
            or held is None
            or (held.cut.node, held.cut.epoch) != claim
        ):
            reason = f"zone {begin.zone!r} at epoch {begin.epoch} is not delegated from here"
            await context.write(HandBackReply(refused=control_pb2.Refused(reason=reason)))
            return
        arrived = await self._receive(begin, context)
        await receive(self._standing, arrived)
        if self._serving() is None:
            await context.abort(grpc.StatusCode.ABORTED, "the parent has lost its own zone")
        self._standing.take_back(begin.zone)
        self._holding.absorb()
        authority.hold(begin.zone)
        try:
            self._serve(authority, held.cut)
            log.info("handback.committed", zone=begin.zone, peer=begin.node)
            epoch = self._standing.table.epoch_of(begin.zone)
            await context.write(HandBackReply(committed=control_pb2.Committed(epoch=epoch)))
            await wait_until(lambda: authority.is_claimed(begin.zone), CLAIM_WAIT)
        finally:
            authority.let_go(begin.zone)
            self._turn.end()

    async def _receive(self, begin: control_pb2.HandBackBegin, context: HandBackContext) -> Arrived:
        await context.write(HandBackReply(ready=control_pb2.Ready()))
        incoming = Incoming()
        while True:
            request = await read(context, HANDOVER_STEP)
            kind = request.WhichOneof("kind") if request is not None else None
            if request is not None and kind == "snapshot":
                incoming.take(snapshot_from_wire(request.snapshot))
            elif request is not None and kind == "fence":
                return Arrived(
                    apex=begin.zone,
                    epoch=begin.epoch,
                    incoming=incoming,
                    subtree=subtree_from_wire(request.fence.subtree),
                )
            else:
                await context.abort(grpc.StatusCode.ABORTED, "the hand-back was broken off")

    # internal: reclaimed

    def _delegated(self, zone: str, epoch: int) -> Cut:
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

    async def _check_dead(self, cut: Cut) -> None:
        """Raises `ReclaimError` where the node lives: joined here, or serving without us."""
        is_alive = self._parent.is_alive(cut.node)
        if not is_alive:
            try:
                reply = await self._channels.stub(cut.grpc).Status(
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

    def _serve(self, authority: Authority, ended: Cut) -> None:
        """The subtree is ours: tell the edges, and the nodes of the zones below."""
        authority.announce_end(ended.apex, ended.epoch)
        below = self._standing.table.subtree(ended.apex).delegations
        for entry in below:
            authority.announce(entry.cut)
        self._turn.end()
        self._parent.adopt(entry.cut for entry in below)
