"""
SHELL: this node as a parent: answers announcements, and announces itself to the nodes below.

`delegation.join_parent` has the steps from an announcement to the grant, `delegation.handover`
those of a handover. `ChildStreams` holds the nodes that have joined.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable

import grpc
import grpc.aio

from txbroker.config import parse_address
from txbroker.delegation.join_messages import ParentAnswer
from txbroker.delegation.join_parent import AskAgain, JoinOutcome, JoinParent, grant_for
from txbroker.delegation.join_rules import JoinRefused, ZoneElsewhere
from txbroker.delegation.peer_checks import AHEAD, check_below, check_epochs, check_name, check_near
from txbroker.delegation.rpc.child_streams import ChildStreams, JoinContext
from txbroker.delegation.rpc.children import Child, other_life, who_to_wire
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.join_convert import ParentEnd, announcement_from_wire
from txbroker.delegation.rpc.stray_publishes import StrayCollector
from txbroker.delegation.state.lost_root import LostRoot
from txbroker.delegation.timeouts import PROTOCOL_VERSION, SILENCE
from txbroker.directory.member_admission import MemberAdmission
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.topics import validate_apex
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import CALL_TIMEOUT
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.rpc.streams import STREAM_ERRORS, brief, describe, read, unsaved
from txbroker.rpc.zone_convert import ended_to_wire
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import JoinReply

log = get_logger()

REFUSALS_REMEMBERED = 1_000
"""Nodes whose refusal is logged once and not at each request."""


class JoinServer:
    """The parent's half of a join."""

    def __init__(
        self,
        base: DelegationBase,
        *,
        admission: MemberAdmission,
        lost_root: LostRoot,
        collector: StrayCollector,
    ) -> None:
        self._base = base
        self._node_grant = base.node_grant
        self._authority = base.authority
        self._lost_root = lost_root
        self._refusals: OrderedDict[str, str] = OrderedDict()
        self._runner = base.runner
        self._procedure = (
            None
            if base.authority is None
            else JoinParent(
                node_grant=base.node_grant,
                zone=base.authority,
                strays=collector,
                node=self,
                ownership=base.ownership,
            )
        )
        self._streams = ChildStreams(base, admission)

    @property
    def children(self) -> dict[str, Child]:
        """Return the nodes whose join stream is up, by name."""
        return self._streams.children

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
            self._base.tasks.start(self._adopt(cut))

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
        self._base.flush_queue.end()
        self.adopt(below)

    def close(self) -> None:
        """End all streams."""
        for child in list(self.children.values()):
            child.send(None)

    # from the handover

    def end_turn(self) -> None:
        """Write the output of all changes so far."""
        self._base.flush_queue.end()

    def refer_child(self, node: str, parent: ZoneCut) -> None:
        """Name another parent to a child that has joined here."""
        child = self.children.get(node)
        if child is not None:
            child.send(JoinReply(moved=control_pb2.Moved(parent=cut_to_wire(parent))))

    # internal: join

    async def _join(self, context: JoinContext) -> None:
        first = await read(context, SILENCE)
        if first is None or first.WhichOneof("kind") != "announce":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "announce yourself first")
        announce = first.announce
        end = ParentEnd(context, self._node_grant)
        outcome = await self._judge(announce) or await self._answer(announce, end)
        match outcome:
            case AskAgain(reason=reason):
                await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
            case JoinRefused() | ZoneElsewhere():
                await end.send(ParentAnswer(answer=outcome))
            case int(epoch):
                # The grant and the child's registration belong to one turn: see `JoinParent`.
                granted = grant_for(self._node_grant, announcement_from_wire(announce), epoch)
                await self._streams.keep(announce, granted, context)

    async def _judge(self, announce: control_pb2.Announce) -> JoinRefused | AskAgain | None:
        """Return the answer to an announcement that this node does not decide on; or None."""
        if announce.version > PROTOCOL_VERSION:
            reason = f"control protocol {announce.version} is newer than {PROTOCOL_VERSION}"
            return JoinRefused(reason=f"{reason}; start the parent's txbroker of that version")
        wrong = _what_is_wrong(announce, self._node_grant.table.epoch_of)
        if wrong is not None:
            return JoinRefused(reason=wrong)
        try:
            later = self._lost_root.judge(announce.node, announce)
        except PeerError as error:
            return self._refuse(announce, str(error))
        if later is not None:
            return AskAgain(reason=later)
        before = self.children.get(announce.node)
        other = await other_life(announce, before, self._base.members, self._base.channels)
        if other is None:
            return None
        reason = (
            f"another node {announce.node!r} lives at {other}; node names are unique in the"
            " tree: choose another `node`, or stop that one; one `data` folder is for one node"
        )
        self._record_refusal(announce, reason)
        return JoinRefused(reason=reason, twin=other)

    async def _answer(
        self, announce: control_pb2.Announce, end: ParentEnd
    ) -> JoinRefused | ZoneElsewhere | AskAgain | int:
        """Return the granted epoch, or why none is granted."""
        if not announce.owns_zone:
            return 0
        if self._procedure is None:
            return JoinRefused(
                reason=f"node {self._node_grant.node!r} owns no zone and can be nobody's parent;"
                " set `parent` to a node above"
            )
        answering = self._procedure.answer(announcement_from_wire(announce))
        outcome: JoinOutcome = await self._runner.run(answering, end)
        match outcome:
            case JoinRefused(reason=reason, cut_off=cut_off):
                return self._refuse(announce, reason, cut_off)
            case ZoneElsewhere() | AskAgain():
                return outcome
        self._refusals.pop(announce.node, None)
        return outcome.cut.epoch

    def _refuse(self, announce: control_pb2.Announce, reason: str, cut_off: int = 0) -> JoinRefused:
        self._record_refusal(announce, reason)
        return JoinRefused(reason=reason, cut_off=cut_off)

    def _record_refusal(self, announce: control_pb2.Announce, reason: str) -> None:
        # A refused node asks again each second: each refusal is logged once.
        if self._refusals.get(announce.node) == reason:
            return
        self._refusals[announce.node] = reason
        if len(self._refusals) > REFUSALS_REMEMBERED:
            self._refusals.popitem(last=False)
        peer, zone = announce.node, announce.zone
        log_limited(log.warning, "join.refused", kind=peer, peer=peer, zone=zone, reason=reason)

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
                who=who_to_wire(node_grant),
            )
            try:
                stub = self._base.channels.stub(cut.grpc, cut.node)
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
