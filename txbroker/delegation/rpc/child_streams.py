"""SHELL: the parent's end of join streams after the grant: signs of life, and news both ways."""

from __future__ import annotations

import asyncio

import grpc.aio

from txbroker.delegation.join_messages import JoinGranted
from txbroker.delegation.join_rules import APEXES, kept_below
from txbroker.delegation.peer_checks import check_below, check_epochs
from txbroker.delegation.rpc.children import NEWS, Child
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.grant_saver import GrantSaver
from txbroker.delegation.rpc.join_convert import answer_to_wire
from txbroker.delegation.timeouts import ALIVE_EVERY, HANDOVER_STEP, SILENCE
from txbroker.directory.member_admission import MemberAdmission
from txbroker.directory.rpc.directory_convert import members_from_wire
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.rpc.streams import STREAM_ERRORS, brief, note_joined, read, write
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import JoinReply, JoinRequest

log = get_logger()

JoinContext = grpc.aio.ServicerContext[JoinRequest, JoinReply]


class ChildStreams:
    """The nodes that have joined here, each with its stream."""

    def __init__(
        self,
        base: DelegationBase,
        admission: MemberAdmission,
    ) -> None:
        self.children: dict[str, Child] = {}
        self._node_grant = base.node_grant
        self._members = base.members
        self._admission = admission
        self._tasks = base.tasks
        self._flush_queue = base.flush_queue
        self._told_lineage: tuple[ZoneCut, ...] = ()
        self._saving = GrantSaver(base.node_grant, base.tasks, on_undone=self._end_all)
        base.node_grant.when_changed(self._tell_lineage)
        base.members.when_changed(self._tell_all_members)

    async def keep(
        self, announce: control_pb2.Announce, granted: JoinGranted, context: JoinContext
    ) -> None:
        """Grant, and hold the child as a member until its stream ends or falls silent."""
        child = Child(announce, granted.epoch)
        zone = child.zone
        before = self.children.get(child.node)
        if before is not None:
            before.send(None)
        self.children[child.node] = child
        child.send(answer_to_wire(granted, self._node_grant))
        child.wake()
        note_joined(context)
        log.info("child.joined", peer=child.node, zone=zone, epoch=granted.epoch)
        reader = self._tasks.start(self._listen(child, context))
        try:
            while True:
                try:
                    reply = await asyncio.wait_for(child.outbox.get(), ALIVE_EVERY)
                except TimeoutError:
                    reply = JoinReply(alive=control_pb2.Alive())
                if reply is None or reader.done():
                    return
                if reply is NEWS:
                    reply = child.members(self._members)
                    if reply is None:
                        continue
                await write(context, reply, HANDOVER_STEP)
        finally:
            reader.cancel()
            if self.children.get(child.node) is child:
                del self.children[child.node]
                log.info("child.disconnected", peer=child.node, zone=zone)

    # internal

    async def _listen(self, child: Child, context: JoinContext) -> None:
        try:
            while (request := await read(context, SILENCE)) is not None:
                child.signs.set()
                match request.WhichOneof("kind"):
                    case "below":
                        self._tell_below(child, request.below)
                    case "members":
                        told = members_from_wire(request.members)
                        self._admission.store_members(child, told, is_stream=True)
                        self._flush_queue.end()
        except PeerError as error:
            node, reason = child.node, brief(str(error))
            log_limited(log.warning, "child.invalid_message", kind=node, peer=node, reason=reason)
        except STREAM_ERRORS:
            pass
        except StoreError as error:
            log.error("state.write_failed", reason=str(error))
        finally:
            self._admission.forget(child)
            child.send(None)

    def _tell_below(self, child: Child, told: control_pb2.Below) -> None:
        # A report on an old stream is ignored: the child has come back, or has lost its zone,
        # since.
        if child.zone is None or told.epoch != child.epoch:
            return
        below = tuple(cut_from_wire(cut) for cut in told.below)
        check_below(child.zone, below)
        check_epochs(((c.apex, c.epoch) for c in below), self._node_grant.table.epoch_of)
        table, apex = self._node_grant.table, child.zone
        kept = kept_below(table, apex, below)
        if kept != below:
            log_limited(log.warning, "zones.over_limit", kind=apex, zone=apex, limit=APEXES)
        if table.store_cuts_below(apex, child.epoch, kept):
            self._saving.save_soon()

    def _end_all(self) -> None:
        """End all streams: a child that joins anew repeats the cuts below it."""
        for child in self.children.values():
            child.send(None)

    def _tell_all_members(self) -> None:
        for child in self.children.values():
            child.wake()

    def _tell_lineage(self) -> None:
        lineage = self._node_grant.lineage_of_children()
        if lineage != self._told_lineage:
            self._told_lineage = lineage
            reply = control_pb2.Lineage(lineage=[cut_to_wire(cut) for cut in lineage])
            for child in self.children.values():
                child.send(JoinReply(lineage=reply))
