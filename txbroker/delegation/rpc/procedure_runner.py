"""SHELL: runs the delegation's procedures: each step on a stream, a disk, a lock, or in time."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, TypeVar

import grpc.aio

from txbroker.authority.authority import Authority
from txbroker.delegation.hand_back_messages import HandBackOffer, HandBackOutcome, SignOfLife
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.procedure import (
    AcquireLock,
    AskOutcome,
    AskParentStatus,
    AskStatus,
    AwaitCondition,
    AwaitSettled,
    AwaitStored,
    LeaveMembers,
    LogEvent,
    MoveRoles,
    MoveSessions,
    ParentStatus,
    Procedure,
    ReceiveMessage,
    SaveReceivedZone,
    SendMessage,
    Step,
)
from txbroker.delegation.rpc.hand_back_convert import outcome_from_wire
from txbroker.delegation.rpc.node_retirement import NodeRetirement
from txbroker.delegation.timeouts import ALIVE_EVERY, HANDOVER_STEP
from txbroker.delegation.tree_walk import NodeAnswer
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.rpc.streams import describe
from txbroker.rpc.zone_convert import node_from_wire
from txbroker.runtime.aio import wait_until
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.storage.committer import Committer
from txbroker.v1 import control_pb2

T = TypeVar("T")

log = get_logger()


class MessageStream(Protocol):
    """An end of a gRPC stream that sends and receives a procedure's messages."""

    async def send(self, message: Any, seconds: float) -> None:
        """Send a message; raises one of `STREAM_ERRORS`."""

    async def receive(self, seconds: float) -> object | None:
        """Return the next message; None at the end; raises one of `STREAM_ERRORS`."""


class DelegationRunner:
    """The runner of a node's procedures; `authority` is None if the node owns no zone."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        authority: Authority | None,
        committer: Committer,
        channels: Channels,
        departure: NodeRetirement,
    ) -> None:
        self._node_grant = node_grant
        self._authority = authority
        self._committer = committer
        self._channels = channels
        self._departure = departure

    async def run(self, procedure: Procedure[T], stream: MessageStream | None = None) -> T:
        """Run a procedure, whose messages take `stream`; return its result, or raise its error."""
        try:
            step = next(procedure)
            while True:
                try:
                    result = await self._do(step, stream)
                except BaseException as error:  # a cancellation undoes the procedure's work, too
                    step = procedure.throw(error)
                else:
                    step = procedure.send(result)
        except StopIteration as stop:
            ended: T = stop.value
            return ended

    async def _do(self, step: Step, stream: MessageStream | None) -> object:
        match step:
            case SendMessage(message=message, seconds=seconds):
                assert stream is not None
                await stream.send(message, seconds)
            case ReceiveMessage(seconds=seconds):
                assert stream is not None
                return await stream.receive(seconds)
            case AwaitCondition(condition=condition, seconds=seconds):
                return await wait_until(condition, seconds)
            case AwaitSettled():
                assert self._authority is not None
                await settled(self._authority)
            case AcquireLock(lock=lock, meanwhile=meanwhile):
                assert isinstance(lock, asyncio.Lock)
                await self._acquire(lock, stream, meanwhile)
            case SaveReceivedZone(zone=zone):
                await asyncio.to_thread(self._node_grant.receive, zone)
            case AwaitStored(seconds=seconds):
                await asyncio.wait_for(self._committer.drain(), seconds)
            case MoveRoles(heir=heir):
                assert stream is not None
                await self._move_roles(heir, stream)
            case MoveSessions(heir=heir):
                return await self._departure.move_sessions(heir)
            case AskParentStatus():
                return await self._ask_parent_status()
            case LeaveMembers(node=node):
                return await self._leave_members(node)
            case AskOutcome(offer=offer):
                return await self._ask_outcome(offer)
            case AskStatus(cut=cut):
                return await self._ask_status(cut)
            case LogEvent(name=name, fields=fields, level=level, kind=None):
                getattr(log, level)(name, **fields)
            case LogEvent(name=name, fields=fields, level=level, kind=str(kind)):
                log_limited(getattr(log, level), name, kind=kind, **fields)
        return None

    async def _acquire(
        self, lock: asyncio.Lock, stream: MessageStream | None, meanwhile: object | None
    ) -> None:
        """Wait for the lock; if the stream breaks before `meanwhile` is sent, raise its error."""
        waiting = asyncio.ensure_future(lock.acquire())
        try:
            while not (await asyncio.wait({waiting}, timeout=ALIVE_EVERY))[0]:
                if meanwhile is not None:
                    assert stream is not None
                    await stream.send(meanwhile, HANDOVER_STEP)
        except BaseException:
            if not waiting.cancel():
                lock.release()  # it was acquired in this turn, for nobody
            raise

    async def _move_roles(self, heir: str, stream: MessageStream) -> None:
        leaving = asyncio.ensure_future(self.run(self._departure.procedures.leave(heir)))
        try:
            while not (await asyncio.wait({leaving}, timeout=ALIVE_EVERY))[0]:
                await stream.send(SignOfLife(), HANDOVER_STEP)
            await leaving
        finally:
            leaving.cancel()

    async def _ask_parent_status(self) -> ParentStatus:
        stub = self._channels.stub(self._node_grant.parent or "")
        try:
            reply = await stub.Status(control_pb2.StatusRequest(), timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(describe(error)) from error
        is_earlier = not reply.HasField("who")
        return ParentStatus(node=reply.node, is_earlier=is_earlier, mqtt=reply.mqtt)

    async def _leave_members(self, node: str) -> str:
        stub = self._channels.stub(self._node_grant.parent or "")
        request = control_pb2.ForgetRequest(node=node, leaves=True)
        try:
            reply = await stub.Forget(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(describe(error)) from error
        return "" if reply.done else reply.reason

    async def _ask_outcome(self, offer: HandBackOffer) -> HandBackOutcome:
        known = self._node_grant.known_parent
        parent = self._node_grant.parent or ""
        stub = self._channels.stub(parent, "" if known is None else known.node)
        request = control_pb2.OutcomeRequest(node=offer.node, zone=offer.zone, epoch=offer.epoch)
        try:
            reply = await stub.Outcome(request, timeout=HANDOVER_STEP)
        except grpc.aio.AioRpcError:
            return HandBackOutcome.UNKNOWN
        return outcome_from_wire(reply)

    async def _ask_status(self, cut: ZoneCut) -> NodeAnswer | None:
        stub = self._channels.stub(cut.grpc, cut.node)
        try:
            reply = await stub.Status(control_pb2.StatusRequest(), timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError:
            return None
        return node_from_wire(reply, cut.grpc)


async def settled(authority: Authority) -> None:
    """Return when all accepted publishes are durable and delivered; raises `TimeoutError`."""
    done = asyncio.Event()
    authority.in_order(done.set)
    await asyncio.wait_for(done.wait(), HANDOVER_STEP)
