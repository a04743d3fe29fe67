"""SHELL: both ends of a hand-back stream: converts the messages of the hand-back procedures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from txbroker.delegation.hand_back_messages import (
    HandBackCommitted,
    HandBackFence,
    HandBackOffer,
    HandBackOutcome,
    HandBackReady,
    JournalCopied,
    JournalCopy,
    JournalRest,
    OfferMessage,
    OfferReply,
    SignOfLife,
)
from txbroker.delegation.join_rules import JoinRefused
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.journal_transfer import JournalReceiver, JournalSender
from txbroker.delegation.zone_snapshot import ZoneSnapshot
from txbroker.model.log_position import JournalId
from txbroker.rpc.streams import describe, read, write
from txbroker.rpc.zone_convert import (
    checked_snapshot,
    needs_from_wire,
    needs_to_wire,
    snapshot_to_wire,
    subtree_from_wire,
    subtree_to_wire,
)
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import HandBackReply, HandBackRequest, OutcomeReply

_OUTCOMES = {
    HandBackOutcome.UNKNOWN: OutcomeReply.UNKNOWN,
    HandBackOutcome.HELD: OutcomeReply.HELD,
    HandBackOutcome.ENDED: OutcomeReply.ENDED,
}


class OfferEnd:
    """The child's end of a hand-back stream; `sender` has the zone's journal."""

    def __init__(self, call: Any, node_grant: NodeGrant, sender: JournalSender) -> None:
        self._call = call
        self._node_grant = node_grant
        self._sender = sender

    async def send(self, message: OfferMessage, seconds: float) -> None:
        """Send a message to the parent; raises `OSError` or `PeerError` if the stream is broken."""
        with _broken():
            match message:
                case JournalCopy(have=have):
                    await self._sender.copy(self._call, set(have))
                case JournalRest():
                    await self._sender.rest(self._call)
                case _:
                    await write(self._call, self._to_wire(message), seconds)

    async def receive(self, seconds: float) -> OfferReply | None:
        """Return the parent's next message; raises as `send` does."""
        with _broken():
            reply: HandBackReply | None = await read(self._call, seconds)
        if reply is None:
            return None
        match reply.WhichOneof("kind"):
            case "refused":
                return JoinRefused(reason=reply.refused.reason)
            case "committed":
                return HandBackCommitted(epoch=reply.committed.epoch)
        return HandBackReady(have=frozenset(JournalId(p.zone, p.epoch) for p in reply.ready.have))

    def _to_wire(self, message: OfferMessage) -> HandBackRequest:
        match message:
            case HandBackOffer(node=node, zone=zone, epoch=epoch, journal=journal):
                begin = control_pb2.HandBackBegin(
                    node=node, zone=zone, epoch=epoch, journal=journal
                )
                return HandBackRequest(begin=begin)
            case SignOfLife():
                return HandBackRequest(alive=control_pb2.Alive())
            case JournalCopied():
                return HandBackRequest(copied=control_pb2.Copied())
            case ZoneSnapshot():
                return HandBackRequest(snapshot=snapshot_to_wire(message))
            case HandBackFence(offset=offset, subtree=subtree, needs=needs):
                cut = self._node_grant.cut
                fence = control_pb2.Fence(
                    zone=cut.apex,
                    epoch=cut.epoch,
                    offset=offset,
                    subtree=subtree_to_wire(subtree),
                    needs=needs_to_wire(needs),
                )
                return HandBackRequest(fence=fence)
            case _:
                raise AssertionError(f"{message} is no message of its own")


class TakeBackEnd:
    """The parent's end of a hand-back stream; `journal` receives the zone's journal."""

    def __init__(self, context: Any, zone: str, journal: JournalReceiver) -> None:
        self._context = context
        self._zone = zone
        self._journal = journal

    async def send(self, message: OfferReply, seconds: float) -> None:
        """Send a message to the child; raises one of `STREAM_ERRORS`."""
        await self._context.write(reply_to_wire(message), seconds)

    async def receive(self, seconds: float) -> object | None:
        """
        Return the child's next message, and append what comes before it to the journal.

        Raises one of `STREAM_ERRORS`, and `StoreError` for a journal that has no room here.
        """
        while True:
            request: HandBackRequest | None = await read(self._context, seconds)
            if request is None:
                return None
            if not await self._journal.receive(request):
                return self._from_wire(request)

    def _from_wire(self, request: HandBackRequest) -> object:
        match request.WhichOneof("kind"):
            case "alive":
                return SignOfLife()
            case "copied":
                return JournalCopied()
            case "snapshot":
                return checked_snapshot(request.snapshot, self._zone)
            case "fence":
                fence = request.fence
                return HandBackFence(
                    offset=fence.offset,
                    subtree=subtree_from_wire(fence.subtree),
                    needs=needs_from_wire(fence.needs),
                )
        return request


def offer_from_wire(begin: control_pb2.HandBackBegin) -> HandBackOffer:
    """Convert the first message of a child."""
    return HandBackOffer(node=begin.node, zone=begin.zone, epoch=begin.epoch, journal=begin.journal)


def reply_to_wire(message: OfferReply) -> HandBackReply:
    """Convert a message to the child."""
    match message:
        case HandBackReady(have=have):
            refs = [control_pb2.PartRef(zone=part.zone, epoch=part.epoch) for part in have]
            return HandBackReply(ready=control_pb2.Ready(have=refs))
        case JoinRefused(reason=reason):
            return HandBackReply(refused=control_pb2.Refused(reason=reason))
        case HandBackCommitted(epoch=epoch):
            return HandBackReply(committed=control_pb2.Committed(epoch=epoch))


def outcome_to_wire(outcome: HandBackOutcome) -> OutcomeReply:
    """Convert the outcome of a hand-back."""
    return OutcomeReply(outcome=_OUTCOMES[outcome])


def outcome_from_wire(reply: OutcomeReply) -> HandBackOutcome:
    """Convert the outcome of a hand-back; a kind that a newer parent knows ends nothing."""
    known = (outcome for outcome, wire in _OUTCOMES.items() if wire == reply.outcome)
    return next(known, HandBackOutcome.HELD)


@contextmanager
def _broken() -> Iterator[None]:
    """Turn gRPC's errors of a broken stream into `ConnectionError`, which procedures know."""
    try:
        yield
    except (
        grpc.aio.AioRpcError,
        grpc.aio.UsageError,
        grpc.aio.InternalError,
        asyncio.InvalidStateError,
    ) as error:
        raise ConnectionError(describe(error)) from error
