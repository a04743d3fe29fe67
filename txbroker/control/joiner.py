"""
SHELL: this node as a child: joins its parent for ever, takes its zone over, gives it back.

A node that held its zone before serves it without asking; joining only shows it alive and brings
news. A node that never held it serves nothing before the first grant.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from txbroker.aio import wait_until
from txbroker.authority.authority import Authority
from txbroker.authority.handover import Incoming
from txbroker.authority.outgoing import Outgoing
from txbroker.control.channels import CALL_TIMEOUT, Channels
from txbroker.control.convert import snapshot_from_wire, snapshot_to_wire
from txbroker.control.parent import (
    ALIVE_EVERY,
    CLAIM_WAIT,
    HANDOVER_STEP,
    PROTOCOL_VERSION,
    SILENCE,
    settled,
)
from txbroker.control.streams import STREAM_ERRORS, describe, open_stream, read, write
from txbroker.errors import StoreError
from txbroker.link.convert import cut_from_wire, cut_to_wire
from txbroker.standing import Standing
from txbroker.telemetry import get_logger
from txbroker.turn import Turn
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import HandBackRequest, JoinRequest

log = get_logger()

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
"""Seconds between attempts to join."""

MOVES_AT_ONCE = 20
"""Referrals to another parent that are followed without a pause; each is one level deeper."""


class RetireError(Exception):
    """The zone cannot be given back; one line why. Nothing has changed."""


class Joiner:
    """The child's half of join and hand-back."""

    def __init__(
        self,
        *,
        standing: Standing,
        authority: Authority | None,
        channels: Channels,
        turn: Turn,
        on_granted: Callable[[Incoming | None], None],
        on_refused: Callable[[str], None],
        on_lineage: Callable[[], None],
    ) -> None:
        self._standing = standing
        self._authority = authority
        self._channels = channels
        self._turn = turn
        self._on_granted = on_granted
        self._on_refused = on_refused
        self._on_lineage = on_lineage
        self._news = asyncio.Event()
        self._told_below: tuple[object, ...] = ()
        self._is_retiring = False
        self._unsaved = ""
        self._is_handing_back = False
        self._received: Incoming | None = None
        self._again = asyncio.Event()
        standing.when_changed(self._news.set)

    # from the node

    async def run(self) -> None:
        """Join, and again whenever the stream ends; for ever."""
        pause, moves, is_first = FIRST_PAUSE, 0, True
        while not self._is_retiring:
            parent = self._standing.parent
            assert parent is not None, "the root does not join"
            self._again.clear()
            ended = ""
            try:
                ended = await self._join(parent)
            except STREAM_ERRORS as error:
                if is_first or pause == FIRST_PAUSE:
                    log.warning("join.failed", parent=parent, reason=describe(error))
            except StoreError as error:
                self._say_unsaved(error)
            is_first = False
            if ended == "moved" and moves < MOVES_AT_ONCE:
                moves += 1
                continue
            if ended == "lost":
                pause, moves = FIRST_PAUSE, 0
                log.warning("join.lost", parent=parent)
            try:
                wait = pause * random.uniform(0.75, 1.0)
                await asyncio.wait_for(self._again.wait(), wait)
            except TimeoutError:
                pause = min(pause * 2, LONGEST_PAUSE)

    def adopt(self, request: control_pb2.AdoptRequest) -> bool:
        """Another node says that it is the parent now."""
        standing = self._standing
        if request.zone != standing.zone or request.epoch != standing.epoch:
            return False
        if standing.parent != request.parent.grpc:
            try:
                standing.move(request.parent.grpc)
            except StoreError as error:
                self._say_unsaved(error)
                return False
            log.info("parent.changed", parent=request.parent.node, address=request.parent.grpc)
        self._again.set()
        self._news.set()
        return True

    async def hand_back(self) -> None:
        """Give the zone back to the parent; raises `RetireError`, and then nothing has changed."""
        standing, authority, parent = self._standing, self._authority, self._standing.parent
        if authority is None or not authority.serving:
            raise RetireError(f"node {standing.node!r} holds no zone")
        if parent is None:
            raise RetireError("the root zone has no parent to go back to; stop the node instead")
        if self._is_handing_back:
            raise RetireError("the zone is being given back already")
        self._is_handing_back = True
        try:
            await self._hand_back(authority, parent)
        finally:
            self._is_handing_back = False

    # internal

    async def _hand_back(self, authority: Authority, parent: str) -> None:
        standing = self._standing
        await wait_until(lambda: not authority.awaits_claims(authority.apex), CLAIM_WAIT)
        outgoing = authority.prepare(authority.apex)
        is_fenced = False
        try:
            standing.set_fenced(True)
            call = open_stream(self._channels.stub(parent).HandBack)
            await self._begin(call)
            for part in outgoing.bulk():
                await write(call, HandBackRequest(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
            offset = authority.fence(outgoing)
            is_fenced = True
            await settled(authority)
            for part in outgoing.rest():
                await write(call, HandBackRequest(snapshot=snapshot_to_wire(part)), HANDOVER_STEP)
            fence = control_pb2.Fence(epoch=authority.epoch, offset=offset)
            await write(call, HandBackRequest(fence=fence), HANDOVER_STEP)
            reply = await read(call, HANDOVER_STEP)
            is_committed = reply is not None and reply.HasField("committed")
        except STREAM_ERRORS as error:
            if not is_fenced:
                self._roll_back(authority, outgoing)
                raise RetireError(
                    f"parent {parent} cannot be reached: {describe(error)}"
                ) from error
            is_committed = False
        except RetireError:
            self._roll_back(authority, outgoing)
            raise
        except StoreError as error:
            authority.roll_back(outgoing)
            raise RetireError(str(error)) from error
        if not is_committed and not await self._was_committed(parent):
            self._roll_back(authority, outgoing)
            raise RetireError(f"parent {parent} did not take the zone back")
        self._complete(authority, outgoing)

    def _roll_back(self, authority: Authority, outgoing: Outgoing) -> None:
        authority.roll_back(outgoing)
        self._standing.set_fenced(False)
        self._turn.end()

    async def _begin(self, call: Any) -> None:
        standing = self._standing
        begin = control_pb2.HandBackBegin(
            node=standing.node, zone=standing.cut.apex, epoch=standing.epoch
        )
        await write(call, HandBackRequest(begin=begin), CALL_TIMEOUT)
        reply = await read(call, CALL_TIMEOUT)
        if reply is None:
            raise RetireError("the parent closed the call")
        if reply.HasField("refused"):
            raise RetireError(reply.refused.reason)

    async def _was_committed(self, parent: str) -> bool:
        """Only the committing parent lifts a fence: ask until it answers (protocol rule 12)."""
        standing = self._standing
        request = control_pb2.ResolveRequest(question=standing.cut.apex, any=True)
        while True:
            try:
                reply = await self._channels.stub(parent).Resolve(request, timeout=CALL_TIMEOUT)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(LONGEST_PAUSE)
                continue
            held = [cut for cut in reply.cuts if cut.apex == standing.zone]
            return not held or held[0].epoch != standing.epoch

    def _complete(self, authority: Authority, outgoing: Outgoing) -> None:
        self._is_retiring = True
        self._standing.lose()
        authority.complete(outgoing)
        self._news.set()
        self._turn.end()
        log.info("zone.retired", zone=authority.apex, epoch=authority.epoch)

    async def _join(self, parent: str) -> str:
        """One join stream; returns why it ended: moved, refused, lost."""
        call = open_stream(self._channels.stub(parent).Join)
        try:
            await write(call, JoinRequest(announce=self._announce()), CALL_TIMEOUT)
            incoming: Incoming | None = None
            while True:
                reply = await read(call, HANDOVER_STEP)
                if reply is None:
                    return "lost"
                match reply.WhichOneof("kind"):
                    case "snapshot":
                        incoming = incoming or Incoming()
                        incoming.take(snapshot_from_wire(reply.snapshot))
                    case "fence":
                        # Kept beyond this stream: the parent may commit and the answer be lost.
                        self._received = incoming or Incoming()
                        await write(
                            call, JoinRequest(received=control_pb2.Received()), HANDOVER_STEP
                        )
                    case "granted":
                        self._granted(reply.granted)
                        return await self._stay(call)
                    case "moved":
                        self._move(reply.moved)
                        return "moved"
                    case "refused":
                        self._on_refused(reply.refused.reason)
                        return "refused"
        finally:
            call.cancel()

    def _announce(self) -> control_pb2.Announce:
        standing = self._standing
        below = standing.table.below()
        self._told_below = below
        return control_pb2.Announce(
            version=PROTOCOL_VERSION,
            node=standing.node,
            owns_zone=standing.zone is not None,
            zone=standing.zone or "",
            grpc=standing.grpc,
            incarnation=standing.incarnation,
            last_epoch=standing.epoch,
            below=[cut_to_wire(cut) for cut in below],
        )

    def _granted(self, granted: control_pb2.Granted) -> None:
        standing = self._standing
        incoming, self._received = self._received, None
        if incoming is not None:
            standing.table.adopt(incoming.delegations)
        standing.grant(granted.epoch, [cut_from_wire(cut) for cut in granted.lineage])
        self._on_granted(incoming)
        self._turn.end()
        self._unsaved = ""
        log.info("join.granted", zone=standing.zone, epoch=granted.epoch)

    def _say_unsaved(self, error: StoreError) -> None:
        # A full disk, say: what could not be saved has not happened. It is tried again each second,
        # and told once.
        if str(error) != self._unsaved:
            self._unsaved = str(error)
            log.error("state.unsaved", reason=self._unsaved)

    def _move(self, moved: control_pb2.Moved) -> None:
        self._standing.move(moved.parent.grpc)
        log.info("parent.changed", parent=moved.parent.node, address=moved.parent.grpc)

    async def _stay(self, call: Any) -> str:
        """Show signs of life and take news until the stream ends."""
        talker = asyncio.ensure_future(self._talk_to_the_end(call))
        try:
            while True:
                try:
                    reply = await read(call, SILENCE)
                except STREAM_ERRORS:
                    return "lost"
                if reply is None:
                    return "lost"
                match reply.WhichOneof("kind"):
                    case "lineage":
                        lineage = [cut_from_wire(cut) for cut in reply.lineage.lineage]
                        self._standing.set_lineage(lineage)
                        self._on_lineage()
                        self._turn.end()
                    case "moved":
                        self._move(reply.moved)
                        return "moved"
                if talker.done():
                    return "moved" if self._again.is_set() else "lost"
        finally:
            talker.cancel()

    async def _talk_to_the_end(self, call: Any) -> None:
        try:
            await self._talk(call)
        except STREAM_ERRORS:
            pass  # whoever reads the stream sees its end, too

    async def _talk(self, call: Any) -> None:
        while not self._is_retiring and not self._again.is_set():
            try:
                await asyncio.wait_for(self._news.wait(), ALIVE_EVERY)
                self._news.clear()
            except TimeoutError:
                pass
            below = self._standing.table.below()
            if below == self._told_below:
                await write(call, JoinRequest(alive=control_pb2.Alive()), SILENCE)
            else:
                self._told_below = below
                told = control_pb2.Below(below=[cut_to_wire(cut) for cut in below])
                await write(call, JoinRequest(below=told), SILENCE)
