"""
SHELL: this node as a child that gives its zone back to its parent (`txbroker retire`).

The child copies the stored journal first and serves the zone meanwhile. `NodeRetirement` then moves
everything else that other nodes need of the child. The remaining steps are those of a join in the
other direction: bulk copy, fence, rest, and the parent's commit.

From the fence on only the parent knows the outcome (protocol rule 12). So the child asks the parent
until the parent answers, and a child that dies meanwhile asks at its next start.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc.aio

from txbroker.authority.authority import Authority
from txbroker.authority.handover_source import HandoverSource
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.rpc.journal_transfer import JournalSender
from txbroker.delegation.rpc.node_retirement import NodeRetirement, RetireError
from txbroker.delegation.rpc.snapshot_copy import settled
from txbroker.delegation.rpc.timeouts import ALIVE_EVERY, CLAIM_WAIT, HANDOVER_STEP, LONGEST_PAUSE
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.journal.store.retention import Retention
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.rpc.streams import STREAM_ERRORS, describe, open_stream, read, write
from txbroker.rpc.zone_convert import needs_to_wire, snapshot_to_wire, subtree_to_wire
from txbroker.runtime.aio import wait_until
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import HandBackRequest, OutcomeReply

if TYPE_CHECKING:
    from txbroker.v1.control_pb2_grpc import ControlAsyncStub

log = get_logger()


class HandBackChild:
    """
    One hand-back; call `run` once.

    `ownership` is the node's lock on all changes of ownership, `router` the lock on requests to the
    parent.
    """

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        authority: Authority,
        channels: Channels,
        data_directory: DataDirectory,
        retention: Retention,
        departure: NodeRetirement,
        flush_queue: FlushQueue,
        router: asyncio.Lock,
        ownership: asyncio.Lock,
    ) -> None:
        self._node_grant = node_grant
        self._authority = authority
        self._channels = channels
        self._retention = retention
        self._departure = departure
        self._flush_queue = flush_queue
        self._router = router
        self._sender = JournalSender(
            data_directory, authority.apex, JournalId(authority.apex, authority.epoch)
        )
        self._ownership = ownership
        self._is_fenced = False

    async def run(self) -> None:
        """
        Give the zone to the parent and return after the parent's commit; raises `RetireError`.
        """
        parent = self._node_grant.parent
        assert parent is not None, "the root does not retire"
        call = open_stream(_parent_stub(self._channels, self._node_grant).HandBack)
        is_done = False
        try:
            await self._copy_journal(call)
            await self._clear_out(call)
            # Publishes that edges inherited here and have not claimed yet would not move along.
            apex, subtrees = self._authority.apex, self._authority.subtrees
            await wait_until(lambda: not subtrees.awaits_claims(apex), CLAIM_WAIT)
            async with self._router, self._ownership:
                self._departure.resign()
                await self._hand_over(call)
            is_done = True
        except STREAM_ERRORS as error:
            raise RetireError(f"parent {parent} cannot be reached: {describe(error)}") from error
        except StoreError as error:
            raise RetireError(str(error)) from error
        finally:
            call.cancel()
            if not is_done:
                self._departure.undo()

    # internal

    async def _copy_journal(self, call: Any) -> None:
        node_grant = self._node_grant
        begin = control_pb2.HandBackBegin(
            node=node_grant.node,
            zone=node_grant.cut.apex,
            epoch=node_grant.epoch,
            journal=self._sender.size,
        )
        await write(call, HandBackRequest(begin=begin), CALL_TIMEOUT)
        ready = await _ready(call)
        await self._sender.copy(call, {JournalId(part.zone, part.epoch) for part in ready.have})

    async def _clear_out(self, call: Any) -> None:
        """
        Move everything else that other nodes need of this node, and show the parent signs of life.
        """
        leaving = asyncio.ensure_future(self._departure.clear(self._node_grant.lineage[-1].node))
        try:
            while not (await asyncio.wait({leaving}, timeout=ALIVE_EVERY))[0]:
                alive = HandBackRequest(alive=control_pb2.Alive())
                await write(call, alive, HANDOVER_STEP)
            await leaving
        finally:
            leaving.cancel()
        await write(call, HandBackRequest(copied=control_pb2.Copied()), HANDOVER_STEP)
        await _ready(call)

    async def _hand_over(self, call: Any) -> None:
        source = self._authority.subtrees.prepare(self._authority.apex)
        try:
            self._node_grant.set_fenced(True)
            try:
                is_committed = await self._copy(source, call)
            except STREAM_ERRORS:
                if not self._is_fenced:
                    raise
                is_committed = False
            if not is_committed and not await self._has_ended():
                raise RetireError("the parent did not take the zone back")
        except (RetireError, StoreError, *STREAM_ERRORS):
            self._roll_back(source)
            raise
        self._complete(source)

    async def _copy(self, source: HandoverSource, call: Any) -> bool:
        """Copy the zone to the parent; return True if the parent reported its commit."""
        authority = self._authority
        for part in source.bulk():
            await write(call, HandBackRequest(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
        offset = authority.subtrees.fence(source)
        self._is_fenced = True
        await settled(authority)
        for part in source.rest():
            await write(call, HandBackRequest(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
        await self._sender.rest(call)
        fence = control_pb2.Fence(
            zone=authority.apex,
            epoch=authority.epoch,
            offset=offset,
            subtree=subtree_to_wire(self._node_grant.table.subtree(authority.apex)),
            needs=needs_to_wire(self._retention.needs(authority.apex)),
        )
        await write(call, HandBackRequest(fence=fence), HANDOVER_STEP)
        reply = await read(call, HANDOVER_STEP)
        if reply is not None and reply.HasField("refused"):
            raise RetireError(reply.refused.reason)  # the parent's word: it has not committed
        return reply is not None and bool(reply.HasField("committed"))

    async def _has_ended(self) -> bool:
        """True if the parent, possibly another node by now, has committed the hand-back."""
        cut = self._node_grant.cut
        request = control_pb2.OutcomeRequest(node=cut.node, zone=cut.apex, epoch=cut.epoch)
        log.warning("handback.in_doubt", zone=cut.apex, parent=self._node_grant.parent)
        while True:
            stub = _parent_stub(self._channels, self._node_grant)
            try:
                reply = await stub.Outcome(request, timeout=HANDOVER_STEP)
            except grpc.aio.AioRpcError:
                reply = OutcomeReply()
            if reply.outcome != OutcomeReply.UNKNOWN:
                return reply.outcome == OutcomeReply.ENDED
            await asyncio.sleep(LONGEST_PAUSE)

    def _roll_back(self, source: HandoverSource) -> None:
        self._authority.subtrees.roll_back(source)
        try:
            self._node_grant.set_fenced(False)
        except StoreError as error:
            # The next life asks the parent before it serves, and the parent renews the grant.
            log.error("state.write_failed", reason=str(error))
        self._flush_queue.end()

    def _complete(self, source: HandoverSource) -> None:
        epoch = self._node_grant.epoch
        try:
            self._node_grant.record_loss()
        except StoreError as error:
            # The next life asks the parent before it serves, and the parent hands the zone over.
            log.error("state.write_failed", reason=str(error))
        self._authority.subtrees.complete(source)
        self._flush_queue.end()
        log.info("zone.retired", zone=self._authority.apex, epoch=epoch)


def _parent_stub(channels: Channels, node_grant: NodeGrant) -> ControlAsyncStub:
    known = node_grant.known_parent
    return channels.stub(node_grant.parent or "", "" if known is None else known.node)


async def _ready(call: Any) -> control_pb2.Ready:
    reply = await read(call, HANDOVER_STEP)
    if reply is None:
        raise RetireError("the parent closed the call")
    if reply.HasField("refused"):
        raise RetireError(reply.refused.reason)
    ready: control_pb2.Ready = reply.ready
    return ready
