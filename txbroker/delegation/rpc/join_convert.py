"""SHELL: both ends of a join stream: converts the messages of the join procedures."""

from __future__ import annotations

from typing import Any

from txbroker.delegation.join_messages import (
    Announcement,
    AnswerDelayed,
    AnsweringNode,
    ChildMessage,
    HandoverFence,
    JoinGranted,
    ParentAnswer,
    ParentMessage,
    StreamMarks,
    ZoneReceived,
)
from txbroker.delegation.join_rules import Applicant, JoinRefused, ZoneElsewhere
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.peer_checks import check, check_marks_above
from txbroker.delegation.rpc.children import who_to_wire
from txbroker.delegation.state.lost_root import root_from_wire, root_to_wire
from txbroker.delegation.timeouts import PROTOCOL_VERSION
from txbroker.delegation.zone_snapshot import ZoneSnapshot
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire, key_from_mark, mark_to_wire
from txbroker.rpc.streams import brief, read, write
from txbroker.rpc.zone_convert import (
    checked_snapshot,
    ended_from_wire,
    ended_to_wire,
    snapshot_to_wire,
    subtree_from_wire,
    subtree_to_wire,
)
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import JoinReply, JoinRequest


class ChildEnd:
    """The child's end of a join stream."""

    def __init__(self, call: Any, node_grant: NodeGrant) -> None:
        self._call = call
        self._node_grant = node_grant

    async def send(self, message: ChildMessage, seconds: float) -> None:
        """Send a message to the parent; raises one of `STREAM_ERRORS`."""
        match message:
            case Announcement():
                request = JoinRequest(announce=announcement_to_wire(message, self._node_grant))
            case ZoneReceived(epoch=epoch):
                request = JoinRequest(received=control_pb2.Received(epoch=epoch))
        await write(self._call, request, seconds)

    async def receive(self, seconds: float) -> object | None:
        """Return the parent's next message; a kind that decides nothing is returned as it is."""
        reply: JoinReply | None = await read(self._call, seconds)
        if reply is None:
            return None
        match reply.WhichOneof("kind"):
            case "snapshot":
                return checked_snapshot(reply.snapshot, self._node_grant.cut.apex)
            case "fence":
                return _fence_from_wire(reply.fence)
            case "marks":
                check(reply.marks)
                marks = tuple((key_from_mark(mark), mark.sequence) for mark in reply.marks.marks)
                check_marks_above(self._node_grant.cut.apex, marks)
                return StreamMarks(marks=marks)
            case "granted" | "moved" | "refused" as kind:
                return ParentAnswer(answer=_ANSWERS[kind](reply), who=_who_from_wire(reply))
        return reply


class ParentEnd:
    """The parent's end of a join stream."""

    def __init__(self, context: Any, node_grant: NodeGrant) -> None:
        self._context = context
        self._node_grant = node_grant

    async def send(self, message: ParentMessage, seconds: float | None = None) -> None:
        """Send a message to the child; raises one of `STREAM_ERRORS`."""
        match message:
            case ZoneSnapshot():
                reply = JoinReply(snapshot=snapshot_to_wire(message))
            case HandoverFence():
                reply = JoinReply(fence=_fence_to_wire(message))
            case StreamMarks(marks=marks):
                told = [mark_to_wire(key, sequence) for key, sequence in marks]
                reply = JoinReply(marks=control_pb2.StreamMarks(marks=told))
            case AnswerDelayed():
                reply = JoinReply(alive=control_pb2.Alive())
            case ParentAnswer(answer=answer):
                reply = answer_to_wire(answer, self._node_grant)
        await self._context.write(reply, seconds)

    async def receive(self, seconds: float) -> object | None:
        """Return the child's next message; a kind that confirms nothing is returned as it is."""
        request: JoinRequest | None = await read(self._context, seconds)
        if request is not None and request.HasField("received"):
            return ZoneReceived(epoch=request.received.epoch)
        return request


def announcement_to_wire(message: Announcement, node_grant: NodeGrant) -> control_pb2.Announce:
    """Convert an announcement, and add the node's identity, its life and its known root."""
    applicant = message.applicant
    by = message.granted_by
    return control_pb2.Announce(
        version=PROTOCOL_VERSION,
        node=applicant.node,
        owns_zone=message.owns_zone,
        zone=applicant.zone,
        grpc=applicant.grpc,
        incarnation=node_grant.incarnation,
        last_epoch=applicant.last_epoch,
        below=[cut_to_wire(cut) for cut in applicant.below],
        holds=applicant.holds,
        fenced=applicant.fenced,
        prepared=applicant.prepared,
        identity=node_grant.identity,
        life=node_grant.life,
        restored=applicant.restored,
        root=root_to_wire(node_grant.root),
        granted_by=None if by is None else control_pb2.PartRef(zone=by.zone, epoch=by.epoch),
        takes_marks=message.takes_marks,
    )


def announcement_from_wire(announce: control_pb2.Announce) -> Announcement:
    """Convert an announcement."""
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
    by = announce.granted_by
    return Announcement(
        applicant=applicant,
        owns_zone=announce.owns_zone,
        granted_by=JournalId(by.zone, by.epoch),
        takes_marks=announce.takes_marks,
    )


def answer_to_wire(
    answer: JoinGranted | JoinRefused | ZoneElsewhere, node_grant: NodeGrant
) -> JoinReply:
    """Convert an answer, and name this node as the one that answers."""
    who = who_to_wire(node_grant)
    match answer:
        case JoinRefused(reason=reason, cut_off=cut_off, twin=twin):
            refused = control_pb2.Refused(reason=brief(reason), cut_off=cut_off, twin=twin)
            return JoinReply(refused=refused, who=who)
        case ZoneElsewhere(cut=cut):
            return JoinReply(moved=control_pb2.Moved(parent=cut_to_wire(cut)), who=who)
        case JoinGranted() as granted:
            wire = control_pb2.Granted(
                epoch=granted.epoch,
                lineage=[cut_to_wire(cut) for cut in granted.lineage],
                ended=ended_to_wire(granted.ended),
                below=[cut_to_wire(cut) for cut in granted.below],
                root=root_to_wire(granted.root),
            )
            return JoinReply(granted=wire, who=who)


def _granted_from_wire(reply: JoinReply) -> JoinGranted:
    granted = reply.granted
    return JoinGranted(
        epoch=granted.epoch,
        lineage=tuple(cut_from_wire(cut) for cut in granted.lineage),
        ended=ended_from_wire(granted.ended),
        below=tuple(cut_from_wire(cut) for cut in granted.below),
        root=root_from_wire(granted),
    )


def _refused_from_wire(reply: JoinReply) -> JoinRefused:
    refused = reply.refused
    return JoinRefused(reason=refused.reason, cut_off=refused.cut_off, twin=refused.twin)


def _moved_from_wire(reply: JoinReply) -> ZoneElsewhere:
    return ZoneElsewhere(cut=cut_from_wire(reply.moved.parent))


_ANSWERS: dict[str, Any] = {
    "granted": _granted_from_wire,
    "moved": _moved_from_wire,
    "refused": _refused_from_wire,
}


def _who_from_wire(reply: JoinReply) -> AnsweringNode | None:
    if not reply.HasField("who"):
        return None
    who = reply.who
    return AnsweringNode(node=who.node, zone=who.zone, identity=who.identity, life=who.life)


def _fence_to_wire(fence: HandoverFence) -> control_pb2.Fence:
    (zone, epoch), offset = fence.left
    return control_pb2.Fence(
        zone=zone,
        epoch=epoch,
        offset=offset,
        grant=fence.epoch,
        subtree=subtree_to_wire(fence.subtree),
    )


def _fence_from_wire(fence: control_pb2.Fence) -> HandoverFence:
    return HandoverFence(
        left=LogPosition(JournalId(fence.zone, fence.epoch), fence.offset),
        epoch=fence.grant,
        subtree=subtree_from_wire(fence.subtree),
    )
