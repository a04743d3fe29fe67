"""
SHELL: this node as a parent that takes a zone back from its child.

`delegation.hand_back_parent` has the steps.
"""

from __future__ import annotations

import grpc
import grpc.aio

from txbroker.delegation.hand_back_messages import HandBackOffer
from txbroker.delegation.hand_back_parent import HandBackAborted, HandBackParent
from txbroker.delegation.join_rules import JoinRefused
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.hand_back_convert import (
    TakeBackEnd,
    offer_from_wire,
    outcome_to_wire,
    reply_to_wire,
)
from txbroker.delegation.rpc.join_server import JoinServer
from txbroker.delegation.rpc.journal_transfer import JournalReceiver, parts_within
from txbroker.delegation.state.staged_journal import StagedJournal
from txbroker.delegation.timeouts import HANDOVER_STEP
from txbroker.delegation.zone_snapshot import StagedZone
from txbroker.model.errors import NoRoom, PeerError, StoreError
from txbroker.model.log_position import JournalId
from txbroker.rpc.streams import STREAM_ERRORS, allow_large, brief, describe, read, unsaved
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.storage.disk_watermark import DiskWatermark
from txbroker.v1.control_pb2 import (
    HandBackReply,
    HandBackRequest,
    OutcomeReply,
    OutcomeRequest,
)

log = get_logger()

HandBackContext = grpc.aio.ServicerContext[HandBackRequest, HandBackReply]


class HandBackServer:
    """The hand-backs to this node; a node that owns no zone takes no zone back."""

    def __init__(
        self, base: DelegationBase, *, parent: JoinServer, watermark: DiskWatermark
    ) -> None:
        self._node_grant = base.node_grant
        self._lifecycle = base.lifecycle
        self._parent = parent
        self._members = base.members
        self._data_directory = base.data_directory
        self._watermark = watermark
        self._flush_queue = base.flush_queue
        self._under_way: set[str] = set()
        self._runner = base.runner
        self._procedure = (
            None
            if base.authority is None
            else HandBackParent(
                node_grant=base.node_grant,
                zone=base.authority,
                node=self,
                ownership=base.ownership,
            )
        )

    # from the control service

    async def hand_back(self, context: HandBackContext) -> None:
        """Serve the call of a child that gives its zone back."""
        try:
            first = await read(context, HANDOVER_STEP)
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, brief(str(error)))
        if first is None or first.WhichOneof("kind") != "begin":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "begin first")
        offer = offer_from_wire(first.begin)
        refusal = self._refusal(offer) or self._hindrance(offer)
        if refusal is not None:
            await context.write(reply_to_wire(JoinRefused(reason=refusal)))
            return
        self._under_way.add(offer.zone)
        allow_large(context)
        try:
            await self._take_back(offer, context)
        except HandBackAborted as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except PeerError as error:
            reason, peer, zone = brief(str(error)), offer.node, offer.zone
            kind = f"{peer}/handback"
            log_limited(
                log.warning, "child.invalid_message", kind=kind, peer=peer, zone=zone, reason=reason
            )
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except NoRoom as error:
            reason = brief(str(error))
            log.warning("handback.refused", zone=offer.zone, peer=offer.node, reason=reason)
            await context.write(reply_to_wire(JoinRefused(reason=reason)))
        except STREAM_ERRORS as error:
            log.info("handback.aborted", zone=offer.zone, peer=offer.node, reason=describe(error))
        except StoreError as error:
            await unsaved(error, context)
        finally:
            self._under_way.discard(offer.zone)

    async def outcome(self, request: OutcomeRequest) -> OutcomeReply:
        """Return the outcome of a child's hand-back (`HandBackParent.outcome`)."""
        if self._procedure is None:
            return OutcomeReply(outcome=OutcomeReply.UNKNOWN)
        offer = HandBackOffer(node=request.node, zone=request.zone, epoch=request.epoch)
        return outcome_to_wire(await self._runner.run(self._procedure.outcome(offer)))

    # from the procedure

    def parts_within(self, apex: str) -> frozenset[JournalId]:
        """Return the local journal parts of a zone and of zones below it."""
        return frozenset(parts_within(self._data_directory, apex))

    def check_room(self, staged_zone: StagedZone) -> None:
        """Refuse a zone with whose state a table here would pass its bound; raises `NoRoom`."""
        assert self._lifecycle is not None
        self._lifecycle.check_room(staged_zone)

    def remove_member(self, node: str) -> None:
        """Remove a node from the members: no node relies on it any more."""
        self._members.remove(node)

    def absorb_zone(self) -> None:
        """Absorb the received state that is committed."""
        assert self._lifecycle is not None
        self._lifecycle.absorb()

    def serve_again(self, apex: str, epoch: int) -> None:
        """Announce the end of a delegation to edges, and this node to the nodes below."""
        self._parent.serve_again(apex, epoch)

    def end_turn(self) -> None:
        """Write the output of all changes so far."""
        self._flush_queue.end()

    # internal

    def _refusal(self, offer: HandBackOffer) -> str | None:
        if self._procedure is None:
            return f"zone {offer.zone!r} at epoch {offer.epoch} is not delegated from here"
        return self._procedure.refusal(offer)

    def _hindrance(self, offer: HandBackOffer) -> str | None:
        if offer.zone in self._under_way:
            return f"zone {offer.zone!r} is being given back already"
        if offer.journal > self._data_directory.room:
            return (
                f"the parent's disk has no room for {offer.journal >> 20} MiB of journal; make"
                " room there, or let `retention` keep less"
            )
        return None

    async def _take_back(self, offer: HandBackOffer, context: HandBackContext) -> None:
        assert self._procedure is not None
        arriving = self._data_directory.arrivals.start(offer.zone)
        journal = self._receiver(offer, arriving)
        try:
            end = TakeBackEnd(context, offer.zone, journal)
            await self._runner.run(self._procedure.take_back(offer, journal), end)
        finally:
            arriving.close()
            if not journal.is_committed:
                self._data_directory.arrivals.forget(offer.zone)

    def _receiver(self, offer: HandBackOffer, arriving: StagedJournal) -> JournalReceiver:
        return JournalReceiver(
            arriving,
            JournalId(offer.zone, offer.epoch),
            is_full=lambda: self._watermark.is_full,
            known=self._node_grant.known_epoch,
        )
