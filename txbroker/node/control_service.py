"""SHELL: the gRPC control service of a node; each call is one step into the responsible part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import attrs
import grpc
import grpc.aio

from txbroker.data.backups import Backups
from txbroker.delegation.hand_back_child import RetireError
from txbroker.delegation.peer_checks import AHEAD, check_name, check_near
from txbroker.delegation.reclaim_parent import ReclaimError
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.divergent_branch import DivergentBranch, DivergentError
from txbroker.delegation.rpc.hand_back_server import HandBackServer
from txbroker.delegation.rpc.join_client import JoinClient
from txbroker.delegation.rpc.join_server import JoinServer
from txbroker.delegation.rpc.zone_reclaim import ZoneReclaim
from txbroker.delegation.state.lost_root import LostRoot, root_to_wire
from txbroker.journal.history.held_journals import HoldingSessions
from txbroker.journal.history.journal_reader import JournalReader
from txbroker.link.listener import LinkListener
from txbroker.link.tokens import EdgeLife
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.topics import (
    TopicError,
    is_filter_within,
    may_match_within,
    validate_topic_filter,
)
from txbroker.node.member_removal import ForgetError, MemberRemoval
from txbroker.rpc.link_convert import cut_to_wire
from txbroker.rpc.streams import brief
from txbroker.rpc.zone_convert import passages_to_wire, place_to_wire
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2, control_pb2_grpc

log = get_logger()

TTL = 30
"""Seconds for which a resolver may cache an answer."""


@attrs.frozen(kw_only=True)
class DelegationCalls:
    """The parts that answer calls on zones, children and parents."""

    parent: JoinServer
    take_back: HandBackServer
    reclaimer: ZoneReclaim
    divergence: DivergentBranch
    forgetter: MemberRemoval
    joiner: JoinClient
    lost_root: LostRoot


@attrs.frozen(kw_only=True)
class NodeCalls:
    """
    The parts that answer calls on the node as a whole.

    `retired` runs after the node has given its zone away.
    """

    status: Callable[[], control_pb2.StatusReply]
    sys_values: Callable[[], dict[str, str]]
    sessions: Callable[[], Awaitable[Iterable[control_pb2.SessionsReply]]]
    delete_session: Callable[[str], bool]
    holding: HoldingSessions
    backups: Backups
    retired: Callable[[], None]


class ControlService(control_pb2_grpc.ControlServicer):
    """Answers the control calls of other nodes and operators."""

    def __init__(
        self,
        base: DelegationBase,
        delegation: DelegationCalls,
        node: NodeCalls,
        *,
        links: LinkListener | None,
        link_address: Callable[[], str],
        reader: JournalReader,
    ) -> None:
        self._node_grant = base.node_grant
        self._authority = base.authority
        self._tasks = base.tasks
        self._delegation = delegation
        self._node = node
        self._links = links
        self._link_address = link_address
        self._reader = reader

    # A call has at most twenty lines: longer logic belongs to one of the parts.

    async def Join(  # type: ignore[override]
        self, request_iterator: AsyncIterator[control_pb2.JoinRequest], context: Any
    ) -> None:
        await self._delegation.parent.join(context)

    async def HandBack(  # type: ignore[override]
        self, request_iterator: AsyncIterator[control_pb2.HandBackRequest], context: Any
    ) -> None:
        await self._delegation.take_back.hand_back(context)

    async def Resolve(
        self, request: control_pb2.ResolveRequest, context: Any
    ) -> control_pb2.ResolveReply:
        await self._check_question(request.question, context)
        node_grant, authority = self._node_grant, self._authority
        lineage = [cut_to_wire(cut) for cut in node_grant.lineage]
        reply = control_pb2.ResolveReply(zone=cut_to_wire(node_grant.cut), ttl=TTL, lineage=lineage)
        is_asked = request.any or request.zone == node_grant.zone
        if authority is None or not authority.serving or not is_asked:
            reply.answer = control_pb2.ResolveReply.NOT_AUTHORITATIVE
            reply.zone.epoch = node_grant.ended
            return reply
        question = request.question or authority.apex
        if not may_match_within(question, authority.apex):
            reply.answer = control_pb2.ResolveReply.NOT_AUTHORITATIVE
            return reply
        cuts = authority.cuts()
        referrals = node_grant.table.touching(question)
        reply.local = not any(is_filter_within(question, cut.apex) for cut in cuts)
        reply.cuts.extend(cut_to_wire(cut) for cut in cuts)
        reply.referrals.extend(cut_to_wire(cut) for cut in referrals)
        if referrals:
            reply.answer = control_pb2.ResolveReply.REFERRAL
        return reply

    async def OpenLink(
        self, request: control_pb2.OpenLinkRequest, context: Any
    ) -> control_pb2.OpenLinkReply:
        authority = self._authority
        is_ours = request.zone == self._node_grant.zone
        reply = control_pb2.OpenLinkReply(
            epoch=self._node_grant.ended if is_ours else request.epoch
        )
        if authority is None or self._links is None:
            return reply
        if not authority.serving or not is_ours:
            return reply
        if request.epoch > authority.epoch:
            return reply  # The parent has granted a newer epoch that this node does not know yet.
        formats = self._links.formats
        if not formats.is_ours(request.edge, request.link_version, authority.apex):
            return control_pb2.OpenLinkReply(link_version=formats.ours)
        try:
            check_name(request.edge)
            check_near("incarnation", request.incarnation, AHEAD)  # at most seconds since 1970
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, brief(str(error)))
        life = EdgeLife(identity=request.identity, life=request.life, grpc=request.grpc)
        other = self._namesake(request.edge, life)
        if other is not None:
            reason = f"another node {request.edge!r} lives at {other}; node names are unique"
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, brief(reason))
        await self._check_root(request.edge, request, context)
        token = self._links.issue(request.edge, request.incarnation, life)
        if token is None:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "as many links as limits.links allows"
            )
        assert token is not None
        reply = control_pb2.OpenLinkReply(
            authoritative=True,
            link=self._link_address(),
            token=token,
            epoch=authority.epoch,
            passages=passages_to_wire(authority.transitions),
            link_version=formats.ours,
            root=root_to_wire(None if self._node_grant.parent else self._node_grant.root),
        )
        if authority.predecessor is not None:
            reply.predecessor.CopyFrom(place_to_wire(authority.predecessor))
        return reply

    async def Read(self, request: control_pb2.ReadRequest, context: Any) -> control_pb2.ReadReply:
        await self._check_root(context.peer(), request, context)
        return self._reader.answer(request)

    async def Held(self, request: control_pb2.HeldRequest, context: Any) -> control_pb2.HeldReply:
        reply: control_pb2.HeldReply = self._node.holding.answer(request)
        return reply

    async def Adopt(
        self, request: control_pb2.AdoptRequest, context: Any
    ) -> control_pb2.AdoptReply:
        return self._delegation.joiner.adopt(request)

    async def Outcome(
        self, request: control_pb2.OutcomeRequest, context: Any
    ) -> control_pb2.OutcomeReply:
        return await self._delegation.take_back.outcome(request)

    async def Status(
        self, request: control_pb2.StatusRequest, context: Any
    ) -> control_pb2.StatusReply:
        return self._node.status()

    async def Sys(self, request: control_pb2.SysRequest, context: Any) -> control_pb2.SysReply:
        return control_pb2.SysReply(values=self._node.sys_values())

    async def Sessions(
        self, request: control_pb2.SessionsRequest, context: Any
    ) -> AsyncIterator[control_pb2.SessionsReply]:
        for reply in list(await self._node.sessions()):  # A snapshot: the stream may be slow.
            yield reply

    async def DeleteSession(
        self, request: control_pb2.DeleteSessionRequest, context: Any
    ) -> control_pb2.DeleteSessionReply:
        return control_pb2.DeleteSessionReply(found=self._node.delete_session(request.client_id))

    async def Backup(
        self, request: control_pb2.BackupRequest, context: Any
    ) -> control_pb2.BackupReply:
        return await asyncio.shield(self._tasks.start(self._backup(Path(request.folder))))

    async def _backup(self, folder: Path) -> control_pb2.BackupReply:
        try:
            copied = await self._node.backups.copy(folder)
        except StoreError as error:
            log.error("backup.failed", folder=str(folder), reason=str(error))
            return control_pb2.BackupReply(done=False, reason=str(error))
        log.info("backup.done", folder=str(folder), files=copied.files, size=copied.size)
        return control_pb2.BackupReply(done=True, files=copied.files, size=copied.size)

    async def Retire(
        self, request: control_pb2.RetireRequest, context: Any
    ) -> control_pb2.RetireReply:
        # A cancelled call must not leave the zone between two owners.
        return await asyncio.shield(self._tasks.start(self._retire(request)))

    async def Reclaim(
        self, request: control_pb2.ReclaimRequest, context: Any
    ) -> control_pb2.ReclaimReply:
        try:
            epoch = await self._delegation.reclaimer.reclaim(request.zone, request.epoch)
        except (ReclaimError, StoreError) as error:
            return control_pb2.ReclaimReply(done=False, reason=str(error))
        return control_pb2.ReclaimReply(done=True, epoch=epoch)

    async def Forget(
        self, request: control_pb2.ForgetRequest, context: Any
    ) -> control_pb2.ForgetReply:
        try:
            zones = await self._delegation.forgetter.forget(request.node, leaves=request.leaves)
        except (ForgetError, StoreError) as error:
            return control_pb2.ForgetReply(done=False, reason=str(error))
        return control_pb2.ForgetReply(done=True, zones=[cut_to_wire(cut) for cut in zones])

    async def Divergent(
        self, request: control_pb2.DivergentRequest, context: Any
    ) -> control_pb2.DivergentReply:
        divergence = self._delegation.divergence
        actions = (divergence.missing_messages, divergence.replay, divergence.drop)
        if request.action >= len(actions):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an unknown action")
        # A cancelled call must not stop an action that has begun.
        return await asyncio.shield(self._tasks.start(_told(actions[request.action](request.zone))))

    async def _retire(self, request: control_pb2.RetireRequest) -> control_pb2.RetireReply:
        try:
            await self._delegation.joiner.hand_back(request.zone, request.epoch)
        except RetireError as error:
            return control_pb2.RetireReply(done=False, reason=str(error))
        self._node.retired()
        return control_pb2.RetireReply(done=True)

    async def _check_root(
        self,
        peer: str,
        request: control_pb2.OpenLinkRequest | control_pb2.ReadRequest,
        context: Any,
    ) -> None:
        try:
            reason = self._delegation.lost_root.judge(peer, request)
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, brief(str(error)))
        if reason is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)

    def _namesake(self, edge: str, life: EdgeLife) -> str | None:
        """Return the address of another process with the edge's name, or None."""
        node_grant = self._node_grant
        if edge == node_grant.node and life.life not in ("", node_grant.life):
            return node_grant.grpc
        return None if self._links is None else self._links.namesake(edge, life)

    async def _check_question(self, question: str, context: Any) -> None:
        if not question:
            return  # The empty question asks for the root's apex.
        try:
            validate_topic_filter(question)
        except TopicError as error:
            reason = f"{brief(repr(question))}: {error}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)


async def _told(
    work: Coroutine[Any, Any, control_pb2.DivergentReply],
) -> control_pb2.DivergentReply:
    try:
        return await work
    except (DivergentError, StoreError) as error:
        return control_pb2.DivergentReply(done=False, reason=str(error))
