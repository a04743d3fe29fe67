"""
SHELL: this node as a parent: grants zones, hands zones over, knows which children are alive.

`delegation.join_rules` decides. `JoinServer` runs the steps of a handover in the order of protocol
rule 12: bulk copy, fence, rest, "received", commit on disk. Only then edges hear of the cut, and
the child may open the zone. Any failure before the commit rolls the handover back.
`hand_back_parent` runs the way back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import attrs
import grpc
import grpc.aio

from txbroker.authority.authority import Authority
from txbroker.authority.handover_source import HandoverSource
from txbroker.config import parse_address
from txbroker.delegation.join_rules import (
    APEXES,
    Applicant,
    GrantRenewed,
    JoinRefused,
    ZoneElsewhere,
    ZoneTransfer,
    decide,
    has_room_for,
)
from txbroker.delegation.peer_checks import AHEAD, check_below, check_epochs, check_name, check_near
from txbroker.delegation.rpc.children import NEWS, Child, other_life, who_to_wire
from txbroker.delegation.rpc.grant_saver import GrantSaver
from txbroker.delegation.rpc.snapshot_copy import settled
from txbroker.delegation.rpc.stray_publishes import StrayCollector
from txbroker.delegation.rpc.timeouts import (
    ALIVE_EVERY,
    CLAIM_WAIT,
    HANDOVER_STEP,
    PROTOCOL_VERSION,
    SILENCE,
)
from txbroker.delegation.state.lost_root import LostRoot, root_to_wire
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.directory.member_admission import MemberAdmission
from txbroker.directory.members import Members
from txbroker.directory.rpc.directory_convert import members_from_wire
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import validate_apex
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.rpc.streams import (
    STREAM_ERRORS,
    brief,
    describe,
    note_joined,
    read,
    unsaved,
    write,
)
from txbroker.rpc.zone_convert import (
    ended_to_wire,
    snapshot_to_wire,
    subtree_to_wire,
)
from txbroker.runtime.aio import Tasks, wait_until
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import JoinReply, JoinRequest

log = get_logger()

REFUSALS_REMEMBERED = 1_000
"""Nodes whose refusal is logged once and not at each request."""

JoinContext = grpc.aio.ServicerContext[JoinRequest, JoinReply]


class JoinServer:
    """The parent's half of a join; `ownership` is the node's lock on all changes of ownership."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        authority: Authority | None,
        members: Members,
        admission: MemberAdmission,
        channels: Channels,
        tasks: Tasks,
        flush_queue: FlushQueue,
        ownership: asyncio.Lock,
        lost_root: LostRoot,
        collector: StrayCollector,
    ) -> None:
        self.children: dict[str, Child] = {}
        self._node_grant = node_grant
        self._authority = authority
        self._members = members
        self._admission = admission
        self._channels = channels
        self._tasks = tasks
        self._flush_queue = flush_queue
        self._ownership = ownership
        self._lost_root = lost_root
        self._collector = collector
        self._refusals: OrderedDict[str, str] = OrderedDict()
        self._told_lineage: tuple[ZoneCut, ...] = ()
        self._saving = GrantSaver(node_grant, tasks)
        node_grant.when_changed(self._broadcast_lineage)
        members.when_changed(self._broadcast_members)

    def is_alive(self, node: str) -> bool:
        """True if the node's join stream is up."""
        return node in self.children

    # from the control service

    async def join(self, context: JoinContext) -> None:
        """Serve one child's stream, from its announcement to its end."""
        try:
            await self._join(context)
        except PeerError as error:
            reason = brief(str(error))
            log_limited(log.warning, "child.invalid_message", kind="join", peer="", reason=reason)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except STREAM_ERRORS as error:
            # The child is gone or stuck. An unfinished handover is rolled back, and the child will
            # ask again.
            log_limited(log.info, "join.aborted", reason=describe(error))
        except StoreError as error:
            await unsaved(error, context)

    # from the node

    def adopt(self, cuts: Iterable[ZoneCut]) -> None:
        """
        Announce this node as the new parent to the nodes below, until each of them has joined.
        """
        for cut in cuts:
            self._tasks.start(self._adopt(cut))

    def serve_again(self, apex: str, epoch: int) -> None:
        """
        Announce the end of a delegation, which is this node's own zone again.

        Edges hear of the end, and the nodes of the zones below get this node as their parent.
        """
        assert self._authority is not None
        self._authority.announce_end(apex, epoch)
        self.serve_below(apex)

    def serve_below(self, apex: str) -> None:
        """Announce and adopt the delegations below an apex that was delegated before."""
        assert self._authority is not None
        below = [entry.cut for entry in self._node_grant.table.subtree(apex).delegations]
        for cut in below:
            self._authority.announce(cut)
        self._flush_queue.end()
        self.adopt(below)

    def close(self) -> None:
        """End all streams."""
        for child in list(self.children.values()):
            child.send(None)

    # internal: join

    async def _join(self, context: JoinContext) -> None:
        first = await read(context, SILENCE)
        if first is None or first.WhichOneof("kind") != "announce":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "announce yourself first")
        announce = first.announce
        if announce.version > PROTOCOL_VERSION:
            reason = f"control protocol {announce.version} is newer than {PROTOCOL_VERSION}"
            await self._refuse(context, f"{reason}; start the parent's txbroker of that version")
            return
        wrong = _what_is_wrong(announce, self._node_grant.table.epoch_of)
        if wrong is not None:
            await self._refuse(context, wrong)
            return
        if await self._must_wait(announce, context):
            return
        before = self.children.get(announce.node)
        other = await other_life(announce, before, self._members, self._channels)
        if other is not None:
            reason = (
                f"another node {announce.node!r} lives at {other}; node names are unique in the"
                " tree: choose another `node`, or stop that one; one `data` folder is for one node"
            )
            self._record_refusal(announce, reason)
            await self._refuse(context, reason)
            return
        if announce.owns_zone:
            if self._authority is None:
                await self._refuse(
                    context,
                    f"node {self._node_grant.node!r} owns no zone and can be nobody's parent;"
                    " set `parent` to a node above",
                )
                return
            async with self._ownership:
                if not self._authority.serving:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the parent has no grant now")
                granted = await self._decide(announce, context)
            if granted is None:
                return
        else:
            granted = 0
        await self._serve_child(announce, granted, context)

    async def _must_wait(self, announce: control_pb2.Announce, context: JoinContext) -> bool:
        """
        True if the announcer was refused, or must come again, because of the root that it knows.
        """
        try:
            reason = self._lost_root.judge(announce.node, announce)
        except PeerError as error:
            self._record_refusal(announce, str(error))
            await self._refuse(context, str(error))
            return True
        if reason is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        return False

    def _who(self) -> control_pb2.Who:
        return who_to_wire(self._node_grant)

    async def _refuse(self, context: JoinContext, reason: str, cut_off: int = 0) -> None:
        refused = control_pb2.Refused(reason=brief(reason), cut_off=cut_off)
        await context.write(JoinReply(refused=refused, who=self._who()))

    async def _decide(self, announce: control_pb2.Announce, context: JoinContext) -> int | None:
        """Return the granted epoch; None if no grant was made."""
        node_grant = self._node_grant
        applicant = Applicant(
            node=announce.node,
            zone=announce.zone,
            grpc=announce.grpc,
            last_epoch=announce.last_epoch,
            holds=announce.holds,
            fenced=announce.fenced,
            prepared=announce.prepared,
            restored=announce.restored,
            below=tuple(cut_from_wire(cut) for cut in announce.below),
        )
        left_out = node_grant.skipped_epochs(applicant.zone)
        decision = decide(
            node_grant.table, applicant, node_grant.lineage, node_grant.cut, left_out=left_out
        )
        match decision:
            case JoinRefused(reason=reason, cut_off=cut_off):
                self._record_settled(announce)
                self._record_refusal(announce, reason)
                await self._refuse(context, reason, cut_off)
                return None
            case ZoneElsewhere(cut=cut):
                self._record_settled(announce)
                moved = control_pb2.Moved(parent=cut_to_wire(cut))
                await context.write(JoinReply(moved=moved, who=self._who()))
                return None
            case GrantRenewed(cut=cut, since=since):
                before = announce.last_epoch if announce.restored else 0
                by = announce.granted_by
                earlier = self._collector.earlier(JournalId(by.zone, by.epoch))
                self._renew(cut, self._below(announce, applicant), since, before, earlier)
            case ZoneTransfer(cut=cut):
                await self._transfer(cut, context)
        # Settle only after the grant: until the child's zone is open again, no reader asks the
        # child for the branch that was cut off.
        if node_grant.table.close_branch(announce.zone, announce.node):
            node_grant.save()
        self._refusals.pop(announce.node, None)
        return cut.epoch

    def _record_settled(self, announce: control_pb2.Announce) -> None:
        # A node that claims no epoch has settled the branch that was reclaimed from it.
        table = self._node_grant.table
        if announce.holds or table.was_reclaimed(announce.zone, announce.prepared):
            return
        if table.close_branch(announce.zone, announce.node):
            self._node_grant.save()

    def _record_refusal(self, announce: control_pb2.Announce, reason: str) -> None:
        # A refused node asks again each second: each refusal is logged once.
        if self._refusals.get(announce.node) == reason:
            return
        self._refusals[announce.node] = reason
        if len(self._refusals) > REFUSALS_REMEMBERED:
            self._refusals.popitem(last=False)
        peer, zone = announce.node, announce.zone
        log_limited(log.warning, "join.refused", kind=peer, peer=peer, zone=zone, reason=reason)

    def _below(self, announce: control_pb2.Announce, applicant: Applicant) -> tuple[ZoneCut, ...]:
        """
        Return the cuts below the child: its own report, merged with the report of before its data
        was lost.
        """
        known = self._node_grant.table.get(applicant.zone)
        if known is None or not announce.restored:
            return self._kept_below(applicant.zone, applicant.below)
        newest = {cut.apex: cut for cut in applicant.below}
        for cut in known.below:
            if cut.apex not in newest or newest[cut.apex].epoch < cut.epoch:
                newest[cut.apex] = cut
        return self._kept_below(applicant.zone, tuple(newest.values()))

    def _kept_below(self, apex: str, told: tuple[ZoneCut, ...]) -> tuple[ZoneCut, ...]:
        """
        Return the reported cuts below a child; the known ones if the table has no room for those.

        The child serves on: it has room for the zones itself, and a refusal would fence it.
        """
        table = self._node_grant.table
        if has_room_for(table, (cut.apex for cut in told)):
            return told
        log_limited(log.warning, "zones.over_limit", kind=apex, zone=apex, limit=APEXES)
        known = table.get(apex)
        return () if known is None else known.below

    def _renew(
        self,
        cut: ZoneCut,
        below: tuple[ZoneCut, ...],
        since: int,
        before: int,
        earlier: Mapping[int, int],
    ) -> None:
        node_grant = self._node_grant
        assert self._authority is not None
        known = node_grant.table.get(cut.apex)
        if known is not None and known.cut == cut and known.below == below:
            return
        offset = self._authority.offset
        strays = node_grant.renew(cut, below, offset, since=since, before=before, earlier=earlier)
        retained = []
        if known is None:
            retained = list(self._authority.retained.within(cut.apex))
            self._authority.discard_retained(cut.apex)
            self._authority.announce_found(cut)
        else:
            self._authority.announce(cut)
        if strays:
            # A restored copy has values of before the delegation, which are older than the child's.
            self._collector.collect(strays, () if node_grant.is_copy else retained)

    async def _transfer(self, cut: ZoneCut, context: JoinContext) -> None:
        authority, node_grant = self._authority, self._node_grant
        assert authority is not None
        # Publishes that edges inherited here and have not claimed yet would not move along.
        await wait_until(lambda: not authority.subtrees.awaits_claims(cut.apex), CLAIM_WAIT)
        source = authority.subtrees.prepare(cut.apex)
        log.info("handover.started", zone=cut.apex, peer=cut.node, epoch=cut.epoch)
        try:
            transition = await self._copy(source, cut, context)
            moved = node_grant.table.subtree(cut.apex).delegations
            if not authority.serving:
                raise ConnectionError("the parent has lost its own zone")
            below = [c for entry in moved for c in (entry.cut, *entry.below)]
            node_grant.table.commit(cut, below)
            node_grant.table.record_transition(transition)
            node_grant.save()
        except BaseException:
            authority.subtrees.roll_back(source)
            log.warning("handover.rolled_back", zone=cut.apex, peer=cut.node)
            raise
        authority.subtrees.complete(source)
        self._flush_queue.end()
        log.info("handover.committed", zone=cut.apex, peer=cut.node, epoch=cut.epoch)
        for entry in moved:
            child = self.children.get(entry.cut.node)
            if child is not None:
                child.send(JoinReply(moved=control_pb2.Moved(parent=cut_to_wire(cut))))

    async def _copy(
        self, source: HandoverSource, cut: ZoneCut, context: JoinContext
    ) -> EpochTransition:
        """
        Copy the zone until the child confirms that it has all of it.

        Return the transition that the zone's topics make to the child's journal.
        """
        assert self._authority is not None
        for part in source.bulk():
            await write(context, JoinReply(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
        offset = self._authority.subtrees.fence(source)
        await settled(self._authority)
        for part in source.rest():
            await write(context, JoinReply(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
        transition = EpochTransition(
            apex=cut.apex,
            left=LogPosition(JournalId(self._authority.apex, self._authority.epoch), offset),
            entered=LogPosition(JournalId(cut.apex, cut.epoch), 0),
        )
        subtree = self._node_grant.table.subtree(cut.apex)
        fence = control_pb2.Fence(
            zone=self._authority.apex,
            epoch=self._authority.epoch,
            offset=offset,
            grant=cut.epoch,
            subtree=subtree_to_wire(
                attrs.evolve(subtree, passages=(*subtree.passages, transition))
            ),
        )
        await write(context, JoinReply(fence=fence), HANDOVER_STEP)
        answer = await read(context, HANDOVER_STEP)
        if answer is None or answer.received.epoch != cut.epoch:
            raise ConnectionError("the child did not confirm")
        return transition

    async def _serve_child(
        self, announce: control_pb2.Announce, epoch: int, context: JoinContext
    ) -> None:
        """Hold the child as a member until its stream ends or falls silent."""
        child = Child(announce, epoch)
        zone = child.zone
        before = self.children.get(child.node)
        if before is not None:
            before.send(None)
        self.children[child.node] = child
        granted = control_pb2.Granted(
            epoch=epoch,
            lineage=[cut_to_wire(cut) for cut in self._node_grant.lineage_of_children()],
            ended=[] if zone is None else ended_to_wire(self._node_grant.ended_around(zone)),
            root=root_to_wire(self._node_grant.root),
        )
        held = None if zone is None else self._node_grant.table.get(zone)
        if announce.restored and held is not None:
            granted.below.extend(cut_to_wire(cut) for cut in held.below)
        child.send(JoinReply(granted=granted, who=self._who()))
        child.wake()
        note_joined(context)
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

    async def _listen(self, child: Child, context: JoinContext) -> None:
        try:
            while (request := await read(context, SILENCE)) is not None:
                child.signs.set()
                match request.WhichOneof("kind"):
                    case "below":
                        self._store_cuts_below(child, request.below)
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

    def _store_cuts_below(self, child: Child, told: control_pb2.Below) -> None:
        # A report on an old stream is ignored: the child has come back, or has lost its zone,
        # since.
        if child.zone is None or told.epoch != child.epoch:
            return
        below = tuple(cut_from_wire(cut) for cut in told.below)
        check_below(child.zone, below)
        check_epochs(((c.apex, c.epoch) for c in below), self._node_grant.table.epoch_of)
        below = self._kept_below(child.zone, below)
        if self._node_grant.table.store_cuts_below(child.zone, child.epoch, below):
            self._saving.save_soon()

    def _broadcast_members(self) -> None:
        for child in self.children.values():
            child.wake()

    def _broadcast_lineage(self) -> None:
        lineage = self._node_grant.lineage_of_children()
        if lineage != self._told_lineage:
            self._told_lineage = lineage
            reply = control_pb2.Lineage(lineage=[cut_to_wire(cut) for cut in lineage])
            for child in self.children.values():
                child.send(JoinReply(lineage=reply))

    async def _adopt(self, cut: ZoneCut) -> None:
        node_grant = self._node_grant
        pause = 0.1
        while not self.is_alive(cut.node):
            held = node_grant.table.get(cut.apex)
            if held is None or held.cut.node != cut.node or not node_grant.serving:
                return
            request = control_pb2.AdoptRequest(
                parent=cut_to_wire(node_grant.cut),
                zone=cut.apex,
                epoch=held.cut.epoch,
                ended=ended_to_wire(node_grant.ended_around(cut.apex)),
                who=self._who(),
            )
            try:
                stub = self._channels.stub(cut.grpc, cut.node)
                reply = await stub.Adopt(request, timeout=CALL_TIMEOUT)
                if reply.other:
                    other = brief(reply.other)
                    log_limited(
                        log.error, "parent.duplicate", kind=cut.node, peer=cut.node, lives=other
                    )
            except grpc.aio.AioRpcError:
                log.debug("adopt.failed", peer=cut.node)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


def _what_is_wrong(announce: control_pb2.Announce, known: Callable[[str], int]) -> str | None:
    """
    Return the fault of an announcement, or None.

    An announcement is not trusted. A value that no topology file may have is a fault. So is an
    epoch far above the `known` one of its zone.
    """
    try:
        check_name(announce.node)
        parse_address(announce.grpc)
        # an incarnation is at most a number of seconds since 1970
        check_near("incarnation", announce.incarnation, AHEAD)
        if announce.owns_zone:
            validate_apex(announce.zone)
            below = [cut_from_wire(cut) for cut in announce.below]
            check_below(announce.zone, below)
            claimed = max(announce.last_epoch, announce.prepared)
            check_epochs([(announce.zone, claimed), *((c.apex, c.epoch) for c in below)], known)
    except (ValueError, PeerError) as error:
        return f"node {brief(repr(announce.node))}: {error}"
    return None
