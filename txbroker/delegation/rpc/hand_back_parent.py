"""
SHELL: this node as a parent that takes a zone back from its child.

The steps, of which only the commit decides (protocol rule 12):

1. The child serves on while its stored journal is copied into a staged journal.
2. Under the ownership lock the parent receives the rest of the journal, the zone's state and the
   fence. No other zone changes hands meanwhile.
3. Journal and state become durable here.
4. The parent commits: the saved delegation table no longer has the child's cut.
5. The parent absorbs the zone, and serves it when the connected edges have claimed it, or after
   `CLAIM_WAIT`.

A zone that would pass a bound here is refused whole, and its child serves on. A failure before the
commit deletes the staged journal. A child without an answer asks for the
`outcome`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs
import grpc
import grpc.aio

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.peer_checks import (
    check_ended_parts,
    check_parts,
    check_reached,
    check_subtree,
    epochs_of,
    marks_within,
)
from txbroker.delegation.rpc.join_server import JoinServer
from txbroker.delegation.rpc.journal_transfer import JournalReceiver, parts_within
from txbroker.delegation.rpc.snapshot_copy import receive
from txbroker.delegation.rpc.timeouts import CLAIM_WAIT, HANDOVER_STEP
from txbroker.delegation.rpc.zone_lifecycle import ZoneLifecycle
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.delegation.state.received_zone_file import StagedZone
from txbroker.delegation.state.staged_journal import StagedJournal
from txbroker.delegation.zone_snapshot import ReceivedZone
from txbroker.directory.members import Members
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import NoRoom, PeerError, StoreError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_within
from txbroker.rpc.streams import STREAM_ERRORS, allow_large, brief, describe, read, unsaved
from txbroker.rpc.zone_convert import checked_snapshot, needs_from_wire, subtree_from_wire
from txbroker.runtime.aio import wait_until
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.storage.disk_watermark import DiskWatermark
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import (
    HandBackBegin,
    HandBackReply,
    HandBackRequest,
    OutcomeReply,
    OutcomeRequest,
)

log = get_logger()

HandBackContext = grpc.aio.ServicerContext[HandBackRequest, HandBackReply]


class HandBackParent:
    """
    The parent's half of a hand-back.

    `ownership` is the node's lock on all changes of ownership. `holding` is None if the node owns
    no zone: such a node takes no zone back.
    """

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        authority: Authority | None,
        lifecycle: ZoneLifecycle | None,
        parent: JoinServer,
        members: Members,
        data_directory: DataDirectory,
        watermark: DiskWatermark,
        flush_queue: FlushQueue,
        ownership: asyncio.Lock,
    ) -> None:
        self._node_grant = node_grant
        self._authority = authority
        self._lifecycle = lifecycle
        self._parent = parent
        self._members = members
        self._data_directory = data_directory
        self._watermark = watermark
        self._flush_queue = flush_queue
        self._ownership = ownership
        self._under_way: set[str] = set()

    # from the control service

    async def hand_back(self, context: HandBackContext) -> None:
        """Serve the call of a child that gives its zone back."""
        try:
            first = await read(context, HANDOVER_STEP)
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, brief(str(error)))
        if first is None or first.WhichOneof("kind") != "begin":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "begin first")
        begin = first.begin
        refusal = self._refusal(begin) or self._hindrance(begin)
        if refusal is not None:
            await context.write(HandBackReply(refused=control_pb2.Refused(reason=refusal)))
            return
        self._under_way.add(begin.zone)
        allow_large(context)
        try:
            await self._receive_zone(begin, context)
        except PeerError as error:
            reason = brief(str(error))
            kind = f"{begin.node}/handback"
            log_limited(
                log.warning,
                "child.invalid_message",
                kind=kind,
                peer=begin.node,
                zone=begin.zone,
                reason=reason,
            )
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except NoRoom as error:
            reason = brief(str(error))
            log.warning("handback.refused", zone=begin.zone, peer=begin.node, reason=reason)
            await context.write(HandBackReply(refused=control_pb2.Refused(reason=reason)))
        except STREAM_ERRORS as error:
            log.info("handback.aborted", zone=begin.zone, peer=begin.node, reason=describe(error))
        except StoreError as error:
            await unsaved(error, context)
        finally:
            self._under_way.discard(begin.zone)

    async def outcome(self, request: OutcomeRequest) -> OutcomeReply:
        """
        Return the outcome of a child's hand-back.

        The answer is binding: a hand-back under way may yet commit, so the answer waits for its
        end.
        """
        async with self._ownership:
            if not self._is_serving():
                return OutcomeReply(outcome=OutcomeReply.UNKNOWN)
            held = self._node_grant.table.get(request.zone)
            claim = (request.node, request.epoch)
            if held is not None and (held.cut.node, held.cut.epoch) == claim:
                return OutcomeReply(outcome=OutcomeReply.HELD)
            if self._node_grant.table.epoch_of(request.zone) > request.epoch:
                return OutcomeReply(outcome=OutcomeReply.ENDED)
            return OutcomeReply(outcome=OutcomeReply.UNKNOWN)

    def journal_of(self, begin: HandBackBegin, arriving: StagedJournal) -> JournalReceiver:
        """Return the receiver of the child's journal."""
        given = JournalId(begin.zone, begin.epoch)
        return JournalReceiver(
            arriving,
            given,
            is_full=lambda: self._watermark.is_full,
            known=self._node_grant.known_epoch,
        )

    # internal

    def _is_serving(self) -> bool:
        return self._authority is not None and self._authority.serving

    def _refusal(self, begin: HandBackBegin) -> str | None:
        held = self._node_grant.table.get(begin.zone)
        claim = (begin.node, begin.epoch)
        if self._is_serving() and held is not None and (held.cut.node, held.cut.epoch) == claim:
            return None
        return f"zone {begin.zone!r} at epoch {begin.epoch} is not delegated from here"

    def _hindrance(self, begin: HandBackBegin) -> str | None:
        if begin.zone in self._under_way:
            return f"zone {begin.zone!r} is being given back already"
        if begin.journal > self._data_directory.room:
            return (
                f"the parent's disk has no room for {begin.journal >> 20} MiB of journal; make"
                " room there, or let `retention` keep less"
            )
        return None

    async def _receive_zone(self, begin: HandBackBegin, context: HandBackContext) -> None:
        assert self._lifecycle is not None
        arriving = self._data_directory.arrivals.start(begin.zone)
        journal = self.journal_of(begin, arriving)
        is_committed = False
        try:
            await self._receive_journal(begin, journal, context)
            async with self._ownership:
                staged_zone, end = await self._receive_rest(begin, journal, context)
                await asyncio.wait_for(arriving.durable(), HANDOVER_STEP)
                arriving.close()
                # A leaving child is no member, and no node relies on it any more. A child that
                # stays after a failed hand-back announces itself again.
                self._members.remove(begin.node)
                await receive(self._node_grant, staged_zone)
                await asyncio.wait_for(self._data_directory.committer.drain(), HANDOVER_STEP)
                if self._refusal(begin) is not None:
                    await context.abort(grpc.StatusCode.ABORTED, "the parent has lost its own zone")
                # Behind all waiting: a link that opens meanwhile takes room as well.
                self._lifecycle.check_room(staged_zone)
                self._node_grant.commit_hand_back(begin.zone, self._passage(begin, end))
                is_committed = True
                await self._serve(begin, context)
        finally:
            arriving.close()
            if not is_committed:
                self._data_directory.arrivals.forget(begin.zone)

    async def _receive_journal(
        self, begin: HandBackBegin, journal: JournalReceiver, context: HandBackContext
    ) -> None:
        have = [
            control_pb2.PartRef(zone=part.zone, epoch=part.epoch)
            for part in parts_within(self._data_directory, begin.zone)
        ]
        await context.write(HandBackReply(ready=control_pb2.Ready(have=have)))
        while await journal.receive(request := await _next(context, may_wait=True)):
            pass
        if not request.HasField("copied"):
            await context.abort(grpc.StatusCode.ABORTED, "the journal comes first")

    async def _receive_rest(
        self, begin: HandBackBegin, journal: JournalReceiver, context: HandBackContext
    ) -> tuple[StagedZone, int]:
        """
        Receive the rest of the journal and the zone's state; return the last offset of the child's
        part too.
        """
        refusal = self._refusal(begin)
        if refusal is not None:
            await context.abort(grpc.StatusCode.ABORTED, refusal)
        await context.write(HandBackReply(ready=control_pb2.Ready()))
        received_zone = ReceivedZone()
        while not (request := await _next(context)).HasField("fence"):
            if request.HasField("snapshot"):
                received_zone.merge(checked_snapshot(request.snapshot, begin.zone))
            elif not await journal.receive(request):
                await context.abort(grpc.StatusCode.ABORTED, "a hand-back ends with its fence")
        subtree = subtree_from_wire(request.fence.subtree)
        needs = needs_from_wire(request.fence.needs)
        check_subtree(begin.zone, subtree, self._node_grant.known_epoch)
        check_parts(begin.zone, (part for places in needs.values() for part in places))
        check_ended_parts(begin.zone, journal.parts, self._known_epochs(subtree))
        check_reached(subtree.passages, self._last_place())
        received_zone.marks = marks_within(begin.zone, received_zone.marks)
        # This node already knows the transitions of the zones around: the child has them from here.
        transitions = tuple(one for one in subtree.passages if is_within(one.apex, begin.zone))
        staged_zone = StagedZone(
            apex=begin.zone,
            epoch=begin.epoch,
            incoming=received_zone,
            subtree=attrs.evolve(subtree, passages=transitions),
            needs=needs,
        )
        return staged_zone, request.fence.offset

    def _known_epochs(self, subtree: DelegationState) -> Callable[[str], int]:
        """
        Return a lookup of each zone's last epoch, known to this node or reported by the child.
        """
        told: dict[str, int] = {}
        for apex, epoch in epochs_of(subtree):
            told[apex] = max(told.get(apex, 0), epoch)
        return lambda apex: max(told.get(apex, 0), self._node_grant.table.epoch_of(apex))

    def _passage(self, begin: HandBackBegin, end: int) -> EpochTransition:
        assert self._authority is not None
        own = JournalId(self._authority.apex, self._authority.epoch)
        return EpochTransition(
            apex=begin.zone,
            left=LogPosition(JournalId(begin.zone, begin.epoch), end),
            entered=LogPosition(own, self._authority.delivered),
        )

    def _last_place(self) -> LogPosition:
        assert self._authority is not None
        return LogPosition(
            JournalId(self._authority.apex, self._authority.epoch), self._authority.offset
        )

    async def _serve(self, begin: HandBackBegin, context: HandBackContext) -> None:
        """Serve the zone after the commit; no failure from here on undoes the commit."""
        assert self._authority is not None and self._lifecycle is not None
        self._lifecycle.absorb()
        self._authority.subtrees.fence_returned(begin.zone)
        try:
            self._parent.serve_again(begin.zone, begin.epoch)
            log.info("handback.committed", zone=begin.zone, peer=begin.node)
            epoch = self._node_grant.table.epoch_of(begin.zone)
            await context.write(HandBackReply(committed=control_pb2.Committed(epoch=epoch)))
            is_claimed = self._authority.subtrees.is_claimed
            await wait_until(lambda: is_claimed(begin.zone), CLAIM_WAIT)
        finally:
            self._authority.subtrees.release(begin.zone)
            self._flush_queue.end()


async def _next(context: HandBackContext, *, may_wait: bool = False) -> HandBackRequest:
    """Return the next request; skip signs of life of a child that `may_wait`."""
    while True:
        request: HandBackRequest | None = await read(context, HANDOVER_STEP)
        if request is None:
            raise ConnectionError("the child has broken it off")
        if not request.HasField("alive"):
            return request
        if not may_wait:
            # The ownership lock is held: a child that idles would block every other change of
            # ownership, here and at the nodes below.
            raise PeerError("a hand-back does not wait behind its journal")
