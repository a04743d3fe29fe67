"""
SHELL: this node as a parent: grants zones, hands them over, takes them back, knows who is alive.

The decisions are `delegation.table`'s; here is the order of the steps (protocol rule 12): bulk
copy, fence, rest, "received", commit on disk, and only then the edges are told and the child may
open. Anything that goes wrong before the commit rolls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import grpc.aio

from txbroker.aio import Tasks, wait_until
from txbroker.authority.authority import Authority
from txbroker.authority.handover import Incoming
from txbroker.authority.outgoing import Outgoing
from txbroker.config import parse_address
from txbroker.control.channels import CALL_TIMEOUT, Channels
from txbroker.control.convert import snapshot_from_wire, snapshot_to_wire
from txbroker.control.streams import STREAM_ERRORS, describe, read, write
from txbroker.delegation.cut import Cut
from txbroker.delegation.table import Applicant, Elsewhere, Refused, Renewed, Transfer
from txbroker.errors import StoreError
from txbroker.link.convert import cut_from_wire, cut_to_wire
from txbroker.standing import Standing
from txbroker.telemetry import get_logger
from txbroker.topics import validate_apex
from txbroker.turn import Turn
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import HandBackReply, HandBackRequest, JoinReply, JoinRequest

log = get_logger()

PROTOCOL_VERSION = 1
"""Of the control plane; a newer peer is refused in one line."""

ALIVE_EVERY = 1.0
SILENCE = 5.0
HANDOVER_STEP = 10.0
"""Seconds: between signs of life, of silence after which a child counts as away, and that the other
side has for one step of a handover."""

CLAIM_WAIT = 2.0
"""Seconds that a handover waits for edges to claim what they have from the one before."""

JoinContext = grpc.aio.ServicerContext[JoinRequest, JoinReply]
HandBackContext = grpc.aio.ServicerContext[HandBackRequest, HandBackReply]


class Child:
    """A node that has joined here: its stream's outbox."""

    def __init__(self, node: str, zone: str | None, grpc_address: str) -> None:
        self.node = node
        self.zone = zone
        self.grpc = grpc_address
        self.outbox: asyncio.Queue[JoinReply | None] = asyncio.Queue(maxsize=1_000)

    def tell(self, reply: JoinReply | None) -> None:
        """Send it to the child; None ends its stream. A child that takes nothing is cut off."""
        while self.outbox.full():
            self.outbox.get_nowait()
            reply = None
        self.outbox.put_nowait(reply)


class Parent:
    """The parent's half of join and hand-back."""

    def __init__(
        self,
        *,
        standing: Standing,
        authority: Authority | None,
        channels: Channels,
        tasks: Tasks,
        turn: Turn,
    ) -> None:
        self.children: dict[str, Child] = {}
        self._standing = standing
        self._authority = authority
        self._channels = channels
        self._tasks = tasks
        self._turn = turn
        self._one_at_a_time = asyncio.Lock()
        self._told_lineage: tuple[Cut, ...] = ()
        standing.when_changed(self._tell_lineage)

    def is_alive(self, node: str) -> bool:
        """Whether the node's join stream is up."""
        return node in self.children

    # from the servicer

    async def join(self, context: JoinContext) -> None:
        """One child's stream, from its announcement to its end."""
        try:
            await self._join(context)
        except STREAM_ERRORS as error:
            # The child is gone or stuck; what had begun is rolled back, and it will ask again.
            log.info("join.ended", reason=describe(error))
        except StoreError as error:
            await _unsaved(error, context)

    async def hand_back(self, context: HandBackContext) -> None:
        """A child gives its zone back."""
        first = await read(context, HANDOVER_STEP)
        if first is None or first.WhichOneof("kind") != "begin":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "begin first")
        begin = first.begin
        held = self._standing.table.get(begin.zone)
        authority = self._authority
        if (
            authority is None
            or not authority.serving
            or held is None
            or (held.cut.node, held.cut.epoch) != (begin.node, begin.epoch)
        ):
            reason = f"zone {begin.zone!r} at epoch {begin.epoch} is not delegated from here"
            await context.write(HandBackReply(refused=control_pb2.Refused(reason=reason)))
            return
        try:
            async with self._one_at_a_time:
                await self._take_back(authority, begin, context)
        except StoreError as error:
            await _unsaved(error, context)

    # from the node

    def adopt(self, cuts: Iterable[Cut]) -> None:
        """Tell the nodes below that this is their parent now, until they have joined."""
        for cut in cuts:
            self._tasks.start(self._adopt(cut))

    def close(self) -> None:
        """End all streams."""
        for child in list(self.children.values()):
            child.tell(None)

    # internal: join

    async def _join(self, context: JoinContext) -> None:
        first = await read(context, SILENCE)
        if first is None or first.WhichOneof("kind") != "announce":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "announce yourself first")
        announce = first.announce
        if announce.version > PROTOCOL_VERSION:
            reason = f"control protocol {announce.version} is newer than {PROTOCOL_VERSION}"
            await _refuse(context, f"{reason}; start the parent's txbroker of that version")
            return
        wrong = _what_is_wrong(announce)
        if wrong is not None:
            await _refuse(context, wrong)
            return
        if announce.owns_zone:
            if self._authority is None:
                await _refuse(
                    context,
                    f"node {self._standing.node!r} owns no zone and can be nobody's parent;"
                    " set `parent` to a node above",
                )
                return
            if not self._authority.serving:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the parent has no grant yet")
            async with self._one_at_a_time:
                granted = await self._decide(announce, context)
            if granted is None:
                return
        else:
            granted = 0
        await self._keep(announce, granted, context)

    async def _decide(self, announce: control_pb2.Announce, context: JoinContext) -> int | None:
        """The epoch granted; None when it was not."""
        standing = self._standing
        below = tuple(cut_from_wire(cut) for cut in announce.below)
        applicant = Applicant(
            node=announce.node,
            zone=announce.zone,
            grpc=announce.grpc,
            last_epoch=announce.last_epoch,
            below=below,
        )
        decision = standing.table.decide(applicant, standing.lineage, standing.node)
        match decision:
            case Refused(reason=reason):
                log.warning("join.refused", peer=announce.node, zone=announce.zone, reason=reason)
                await _refuse(context, reason)
                return None
            case Elsewhere(cut=cut):
                await context.write(JoinReply(moved=control_pb2.Moved(parent=cut_to_wire(cut))))
                return None
            case Renewed(cut=cut):
                self._renew(cut, below)
            case Transfer(cut=cut):
                await self._transfer(decision, context)
        return cut.epoch

    def _renew(self, cut: Cut, below: tuple[Cut, ...]) -> None:
        standing = self._standing
        assert self._authority is not None
        known = standing.table.get(cut.apex)
        if known is not None and known.cut == cut and known.below == below:
            return
        standing.table.commit(cut, below)
        standing.save()
        self._authority.announce(cut)

    async def _transfer(self, decision: Transfer, context: JoinContext) -> None:
        cut, authority, standing = decision.cut, self._authority, self._standing
        assert authority is not None
        # What edges have inherited here and not claimed yet would not go along.
        await wait_until(lambda: not authority.awaits_claims(cut.apex), CLAIM_WAIT)
        outgoing = authority.prepare(cut.apex)
        log.info("handover.prepare", zone=cut.apex, peer=cut.node, epoch=cut.epoch)
        try:
            await self._copy(outgoing, context)
            moved = tuple(c for entry in decision.moved for c in (entry.cut, *entry.below))
            standing.table.commit(cut, moved)
            standing.save()
        except BaseException:
            authority.roll_back(outgoing)
            log.warning("handover.rolled_back", zone=cut.apex, peer=cut.node)
            raise
        authority.complete(outgoing)
        self._turn.end()
        log.info("handover.committed", zone=cut.apex, peer=cut.node, epoch=cut.epoch)
        for entry in decision.moved:
            child = self.children.get(entry.cut.node)
            if child is not None:
                child.tell(JoinReply(moved=control_pb2.Moved(parent=cut_to_wire(cut))))

    async def _copy(self, outgoing: Outgoing, context: JoinContext) -> None:
        assert self._authority is not None
        for part in outgoing.bulk():
            await write(context, JoinReply(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
        offset = self._authority.fence(outgoing)
        await settled(self._authority)
        for part in outgoing.rest():
            await write(context, JoinReply(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
        fence = control_pb2.Fence(epoch=self._authority.epoch, offset=offset)
        await write(context, JoinReply(fence=fence), HANDOVER_STEP)
        answer = await read(context, HANDOVER_STEP)
        if answer is None or answer.WhichOneof("kind") != "received":
            raise ConnectionError("the child did not confirm")

    async def _keep(self, announce: control_pb2.Announce, epoch: int, context: JoinContext) -> None:
        """The child is a member until its stream ends or falls silent."""
        zone = announce.zone if announce.owns_zone else None
        child = Child(announce.node, zone, announce.grpc)
        before = self.children.get(child.node)
        if before is not None:
            before.tell(None)
        self.children[child.node] = child
        lineage = [cut_to_wire(cut) for cut in self._standing.lineage_of_children()]
        child.tell(JoinReply(granted=control_pb2.Granted(epoch=epoch, lineage=lineage)))
        log.info("child.joined", peer=child.node, zone=zone, epoch=epoch)
        reader = self._tasks.start(self._listen(child, context))
        try:
            while True:
                try:
                    reply = await asyncio.wait_for(child.outbox.get(), ALIVE_EVERY)
                except TimeoutError:
                    reply = JoinReply(alive=control_pb2.Alive())
                if reply is None or reader.done():
                    return
                await write(context, reply, HANDOVER_STEP)
        finally:
            reader.cancel()
            if self.children.get(child.node) is child:
                del self.children[child.node]
                log.info("child.away", peer=child.node, zone=zone)

    async def _listen(self, child: Child, context: JoinContext) -> None:
        try:
            while (request := await read(context, SILENCE)) is not None:
                if request.WhichOneof("kind") == "below" and child.zone is not None:
                    below = [cut_from_wire(cut) for cut in request.below.below]
                    if self._standing.table.tell_below(child.zone, below):
                        self._standing.save()
        except STREAM_ERRORS:
            pass
        except StoreError as error:
            log.error("state.unsaved", reason=str(error))
        finally:
            child.tell(None)

    def _tell_lineage(self) -> None:
        lineage = self._standing.lineage_of_children()
        if lineage != self._told_lineage:
            self._told_lineage = lineage
            reply = control_pb2.Lineage(lineage=[cut_to_wire(cut) for cut in lineage])
            for child in self.children.values():
                child.tell(JoinReply(lineage=reply))

    # internal: hand-back

    async def _take_back(
        self, authority: Authority, begin: control_pb2.HandBackBegin, context: HandBackContext
    ) -> None:
        await context.write(HandBackReply(ready=control_pb2.Ready()))
        incoming = Incoming()
        while True:
            request = await read(context, HANDOVER_STEP)
            kind = request.WhichOneof("kind") if request is not None else None
            if request is not None and kind == "snapshot":
                incoming.take(snapshot_from_wire(request.snapshot))
            elif kind == "fence":
                break
            else:
                await context.abort(grpc.StatusCode.ABORTED, "the hand-back was broken off")
        standing = self._standing
        standing.table.release(begin.zone, incoming.delegations)
        standing.save()
        authority.absorb(begin.zone, incoming)
        authority.announce_end(begin.zone, begin.epoch)
        for cut in incoming.delegations:
            authority.announce(cut)
        self._turn.end()
        log.info("handback.committed", zone=begin.zone, peer=begin.node)
        epoch = standing.table.epoch_of(begin.zone)
        await context.write(HandBackReply(committed=control_pb2.Committed(epoch=epoch)))
        self.adopt(incoming.delegations)

    async def _adopt(self, cut: Cut) -> None:
        standing = self._standing
        pause = 0.1
        while not self.is_alive(cut.node):
            held = standing.table.get(cut.apex)
            if held is None or held.cut.node != cut.node:
                return
            request = control_pb2.AdoptRequest(
                parent=cut_to_wire(standing.cut), zone=cut.apex, epoch=held.cut.epoch
            )
            try:
                await self._channels.stub(cut.grpc).Adopt(request, timeout=CALL_TIMEOUT)
            except grpc.aio.AioRpcError:
                log.debug("adopt.failed", peer=cut.node)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


async def settled(authority: Authority) -> None:
    """Return when everything that was taken is durable and delivered; raises `TimeoutError`."""
    if not await wait_until(lambda: authority.is_settled, HANDOVER_STEP):
        raise TimeoutError("the store does not keep up")


def _what_is_wrong(announce: control_pb2.Announce) -> str | None:
    """Nothing from the network is trusted: what a topology file would be refused for."""
    if not announce.node or set(announce.node) & set("/+# "):
        return f"{announce.node!r} is no node name; it has no spaces and no / + #"
    try:
        parse_address(announce.grpc)
        if announce.owns_zone:
            validate_apex(announce.zone)
            for cut in announce.below:
                validate_apex(cut.apex)
    except ValueError as error:
        return f"node {announce.node!r}: {error}"
    return None


async def _unsaved(error: StoreError, context: JoinContext | HandBackContext) -> None:
    """Nothing has changed, since it could not be made durable; the other side asks again."""
    log.error("state.unsaved", reason=str(error))
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


async def _refuse(context: JoinContext, reason: str) -> None:
    await context.write(JoinReply(refused=control_pb2.Refused(reason=reason)))
