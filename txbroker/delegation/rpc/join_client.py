"""
SHELL: this node as a child: joins its parent for ever, receives its zone, gives the zone back.

The client has one join stream at a time. A stream begins with the child's announcement; the
parent's answer decides the rest:

- snapshot, fence: the parent hands the zone over. The child stores the state, confirms, and waits
  for the grant.
- granted: the stream stays open for signs of life and news, until it is lost.
- moved: the client joins the named parent instead.
- refused: the client asks again after a pause, as after a lost stream.

A node that held its zone before serves the zone without a new grant. A node that never held its
zone serves nothing before the first grant. The parent changes by `moved`, by another node's
`adopt`, or after a long silence. A completed hand-back ends the loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.peer_checks import (
    check_above,
    check_below,
    check_ended,
    check_epochs,
    check_near,
    check_predecessor,
    check_subtree,
)
from txbroker.delegation.rpc.edge_retirement import EdgeRetirement
from txbroker.delegation.rpc.hand_back_child import HandBackChild
from txbroker.delegation.rpc.node_retirement import NodeRetirement, RetireError
from txbroker.delegation.rpc.snapshot_copy import receive
from txbroker.delegation.rpc.timeouts import (
    ALIVE_EVERY,
    FIRST_PAUSE,
    HANDOVER_STEP,
    LONGEST_PAUSE,
    LOST_AFTER,
    PROTOCOL_VERSION,
    SILENCE,
)
from txbroker.delegation.rpc.zone_lifecycle import ZoneLifecycle
from txbroker.delegation.state.lost_root import checked_root, root_to_wire
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.delegation.state.node_state import KnownParent
from txbroker.delegation.state.received_zone_file import StagedZone
from txbroker.delegation.zone_snapshot import ReceivedZone
from txbroker.directory.members import Members
from txbroker.directory.rpc.directory_convert import members_from_wire, members_to_wire
from txbroker.journal.store.retention import Retention
from txbroker.model.errors import NoRoom, PeerError, StoreError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import CALL_TIMEOUT, Channels, stranger_in
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.rpc.streams import (
    STREAM_ERRORS,
    brief,
    describe,
    open_stream,
    read,
    write,
)
from txbroker.rpc.zone_convert import checked_snapshot, ended_from_wire, subtree_from_wire
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2, types_pb2
from txbroker.v1.control_pb2 import JoinRequest

log = get_logger()

MOVES_AT_ONCE = 20
"""Referrals to another parent that a join follows without a pause; each leads one level deeper."""


FULL_PAUSE = 60.0
"""Seconds until the next attempt to take a zone for which there was no room."""

CUT_PAUSE = 0.0001
"""
Seconds between two reports of the cuts below, per cut: the parent reads every cut of a report.
"""


class JoinClient:
    """
    The child's half of join and hand-back.

    `ownership`: the node's lock on all changes of ownership below this node.
    """

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        authority: Authority | None,
        lifecycle: ZoneLifecycle | None,
        members: Members,
        channels: Channels,
        data_directory: DataDirectory,
        retention: Retention,
        departure: NodeRetirement,
        withdrawal: Callable[[], EdgeRetirement],
        flush_queue: FlushQueue,
        ownership: asyncio.Lock,
        on_granted: Callable[[], None],
        on_refused: Callable[[str, int], None],
        on_lineage: Callable[[], None],
    ) -> None:
        self._node_grant = node_grant
        self._authority = authority
        self._lifecycle = lifecycle
        self._members = members
        self._channels = channels
        self._data_directory = data_directory
        self._retention = retention
        self._departure = departure
        self._withdrawal = withdrawal
        self._flush_queue = flush_queue
        self._ownership = ownership
        self._on_granted = on_granted
        self._on_refused = on_refused
        self._on_lineage = on_lineage
        self._news = asyncio.Event()
        self._told_below: tuple[object, ...] = ()
        self._is_retiring = False
        self._unsaved = ""
        self._stranger = ("", "")
        # The parent's name, life and address while the join stream is up. The node grant may name
        # another parent since.
        self._joined_to = ("", "", "")
        self._is_handing_back = False
        self._silent_since: float | None = None  # the time at which the parent's silence began
        # Requests to the parent are serialized. Otherwise the parent could answer an announcement
        # after the hand-back that followed, and read it as a claim to the zone.
        self._router = asyncio.Lock()
        self._again = asyncio.Event()
        node_grant.when_changed(self._news.set)
        members.when_changed(self._news.set)

    # from the node

    async def run(self) -> None:
        """Join the parent, and join again whenever the stream ends; for ever."""
        pause, moves, is_first = FIRST_PAUSE, 0, True
        while not self._is_retiring:
            parent = self._node_grant.parent
            assert parent is not None, "the root does not join"
            self._again.clear()
            ended = ""
            try:
                ended = await self._join(parent)
                self._silent_since = None
            except PeerError as error:
                reason = brief(str(error))
                log_limited(log.warning, "join.failed", kind="lie", parent=parent, reason=reason)
            except STREAM_ERRORS as error:
                stranger = stranger_in(error)
                if stranger is not None:
                    self._log_stranger(parent, stranger)
                elif is_first or pause == FIRST_PAUSE:
                    log.warning("join.failed", parent=parent, reason=describe(error))
                self._ask_ancestors()
            except StoreError as error:
                self._log_unsaved(error)
            except NoRoom as error:
                # The parent fences the zone for each attempt.
                pause = FULL_PAUSE
                reason = brief(str(error))
                log_limited(log.warning, "join.failed", kind="full", parent=parent, reason=reason)
            is_first = False
            if ended == "moved" and moves < MOVES_AT_ONCE:
                moves += 1
                continue
            if ended == "lost":
                pause, moves = FIRST_PAUSE, 0
                log.warning("join.disconnected", parent=parent)
            try:
                wait = pause * random.uniform(0.75, 1.0)
                await asyncio.wait_for(self._again.wait(), wait)
            except TimeoutError:
                pause = min(pause * 2, LONGEST_PAUSE)

    def adopt(self, request: control_pb2.AdoptRequest) -> control_pb2.AdoptReply:
        """Answer another node that claims to be the parent now."""
        node, life, address = self._joined_to
        if node == request.parent.node and life and request.who.life not in ("", life):
            # The real parent lives, and the caller is a copy of it.
            return control_pb2.AdoptReply(accepted=False, other=address)
        return control_pb2.AdoptReply(accepted=self._may_adopt(request))

    def _may_adopt(self, request: control_pb2.AdoptRequest) -> bool:
        node_grant = self._node_grant
        if node_grant.parent is None or request.zone != node_grant.zone:
            return False
        try:
            (parent,) = self._lineage([request.parent])
            ended = self._ended(request.ended)
        except PeerError as error:
            reason = brief(str(error))
            log_limited(
                log.warning, "parent.invalid_message", peer=request.parent.node, reason=reason
            )
            return False
        if node_grant.is_outdated(parent):
            return False
        # The new parent may know an outdated epoch of this zone. The old parent could not report a
        # later one before it was replaced.
        above = node_grant.lineage[-1] if node_grant.lineage else None
        is_over = above is not None and ended.get(above.apex, 0) > above.epoch
        if request.epoch != node_grant.epoch and not is_over:
            return False
        joined = self._joined_to[0]
        if joined not in ("", parent.node) and not is_over:
            # the joined parent lives and would announce a change itself; a stranger could call as
            # well
            return False
        if node_grant.parent != request.parent.grpc:
            try:
                node_grant.set_parent(parent, request.who.identity, ended)
            except StoreError as error:
                self._log_unsaved(error)
                return False
            log.info("parent.changed", parent=request.parent.node, address=request.parent.grpc)
        self.join_again()
        return True

    def join_again(self) -> None:
        """Ask the parent now, even if a request is under way."""
        self._again.set()
        self._news.set()

    async def hand_back(self, zone: str, epoch: int) -> None:
        """
        Give the zone back to the parent; raises `RetireError`, and then no state has changed.

        `zone` and `epoch` are the values that the caller has seen. A pure edge has no zone to give
        back and retires all the same.
        """
        if self._is_handing_back:
            raise RetireError("the node is retiring already")
        self._is_handing_back = True
        try:
            if self._node_grant.zone is None:
                await self._withdrawal().run()
            else:
                await self._hand_back(zone, epoch)
            self._is_retiring = True
            self._news.set()
        finally:
            self._is_handing_back = False

    # internal

    async def _hand_back(self, zone: str, epoch: int) -> None:
        node_grant, authority = self._node_grant, self._authority
        if authority is None or not authority.serving:
            raise RetireError(f"node {node_grant.node!r} holds no zone")
        if node_grant.parent is None:
            raise RetireError("the root zone has no parent to go back to; stop the node instead")
        if (zone, epoch) != (authority.apex, authority.epoch):
            raise RetireError(f"zone {authority.apex!r} is held at epoch {authority.epoch} now")
        await HandBackChild(
            node_grant=node_grant,
            authority=authority,
            channels=self._channels,
            data_directory=self._data_directory,
            retention=self._retention,
            departure=self._departure,
            flush_queue=self._flush_queue,
            router=self._router,
            ownership=self._ownership,
        ).run()

    def _ask_ancestors(self) -> None:
        """
        Ask the nodes above a silent parent, if the parent may be gone for good.

        A forgotten parent may be gone. A node that owns no epoch yet asks as well: no parent knows
        such a node, so no new parent would call it.
        """
        node_grant, now = self._node_grant, asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
        is_forgotten = self._members.is_removed(node_grant.parent_name)
        has_nothing = node_grant.zone is not None and not node_grant.holds
        if now - self._silent_since < LOST_AFTER or not (is_forgotten or has_nothing):
            return
        self._silent_since = now
        try:
            above = node_grant.choose_ancestor()
        except (PeerError, StoreError) as error:
            log_limited(log.warning, "parent.lost", kind="unsaved", reason=brief(str(error)))
            return
        if above:
            log_limited(log.warning, "parent.lost", kind=above, address=above)

    async def _join(self, parent: str) -> str:
        """
        Run one join stream; return the reason of its end: moved, refused, lost, strange, retired.
        """
        known = self._node_grant.known_parent
        stub = self._channels.stub(parent, "" if known is None else known.node)
        call = open_stream(stub.Join)
        try:
            async with self._router:
                if self._is_retiring:
                    return "retired"
                ended = await self._run_stream(call, parent)
            return ended or await self._serve_stream(call)
        finally:
            self._joined_to = ("", "", "")
            call.cancel()

    async def _run_stream(self, call: Any, parent: str) -> str:
        """
        Run the stream from the announcement to the answer.

        Return the reason of the stream's end, or "" if the stream stays open.
        """
        await write(call, JoinRequest(announce=self._announce()), CALL_TIMEOUT)
        received_zone = ReceivedZone()
        while True:
            reply = await read(call, HANDOVER_STEP)
            if reply is None:
                return "lost"
            if self._is_strange(reply):
                self._log_stranger(parent, reply.who.node)
                return "strange"
            match reply.WhichOneof("kind"):
                case "snapshot":
                    received_zone.merge(checked_snapshot(reply.snapshot, self._node_grant.cut.apex))
                case "fence":
                    await self._receive(received_zone, reply.fence)
                    received = control_pb2.Received(epoch=reply.fence.grant)
                    await write(call, JoinRequest(received=received), HANDOVER_STEP)
                case "granted":
                    self._granted(reply.granted)
                    self._accept_parent(parent, reply)
                    return ""
                case "moved":
                    self._move(reply.moved)
                    return "moved"
                case "refused":
                    self._on_refused(reply.refused.reason, reply.refused.cut_off)
                    return "refused"

    def _is_strange(self, reply: control_pb2.JoinReply) -> bool:
        """
        True if another node than the parent sent this reply.

        A node with the parent's name and zone is still the parent, even if its data was lost.
        """
        known = self._node_grant.known_parent
        if known is None or not known.identity or known.identity == reply.who.identity:
            return False
        if reply.WhichOneof("kind") not in ("granted", "refused", "moved"):
            return False  # such a reply decides nothing
        if not reply.HasField("who"):  # an older node names itself only with a grant
            lineage = reply.granted.lineage
            return not lineage or (lineage[-1].node, lineage[-1].apex) != (known.node, known.zone)
        return (reply.who.node, reply.who.zone) != (known.node, known.zone)

    def _log_stranger(self, parent: str, peer: str) -> None:
        # The stranger is asked again each second: the parent may come back there, or call this
        # node. The log has each stranger once.
        if self._stranger != (parent, peer):
            self._stranger = (parent, peer)
            log.warning(
                "parent.address_reused",
                parent=parent,
                peer=peer,
                reason="another node has the parent's address; the zone is served on. If that node"
                " is the parent now, change `parent`",
            )

    def _accept_parent(self, parent: str, reply: control_pb2.JoinReply) -> None:
        self._stranger = ("", "")
        self._joined_to = (reply.who.node, reply.who.life, parent)
        who, before = reply.who, self._node_grant.known_parent
        if not reply.HasField("who"):
            return
        if before is not None and before.identity not in ("", who.identity):
            log.warning("parent.replaced", parent=parent, peer=who.node)
        self._node_grant.record_parent(
            KnownParent(grpc=parent, node=who.node, zone=who.zone, identity=who.identity)
        )

    async def _receive(self, received_zone: ReceivedZone, fence: control_pb2.Fence) -> None:
        # The zone's state must be durable before the parent hears of it: after the parent's commit
        # no other node has that state.
        node_grant = self._node_grant
        subtree = subtree_from_wire(fence.subtree)
        check_subtree(node_grant.cut.apex, subtree, node_grant.known_epoch)
        if fence.grant <= node_grant.epoch:
            raise PeerError(f"epoch {fence.grant} is not above {node_grant.epoch}, which was held")
        check_near("grant", fence.grant, node_grant.epoch)
        before = LogPosition(JournalId(fence.zone, fence.epoch), fence.offset)
        check_predecessor(
            JournalId(node_grant.cut.apex, fence.grant), before, node_grant.known_epoch
        )
        received_zone.predecessor = (fence.zone, fence.epoch, fence.offset)
        staged_zone = StagedZone(
            apex=node_grant.cut.apex,
            epoch=fence.grant,
            incoming=received_zone,
            subtree=subtree,
        )
        assert self._lifecycle is not None
        self._lifecycle.check_room(staged_zone)
        await receive(node_grant, staged_zone)
        log.info("handover.received", zone=node_grant.zone, epoch=fence.grant)

    def _announce(self) -> control_pb2.Announce:
        node_grant = self._node_grant
        below = node_grant.table.below()
        self._told_below = below
        return control_pb2.Announce(
            version=PROTOCOL_VERSION,
            node=node_grant.node,
            owns_zone=node_grant.zone is not None,
            zone=node_grant.zone or "",
            grpc=node_grant.grpc,
            incarnation=node_grant.incarnation,
            last_epoch=node_grant.epoch,
            below=[cut_to_wire(cut) for cut in below],
            holds=node_grant.holds,
            fenced=node_grant.fenced,
            prepared=node_grant.prepared,
            identity=node_grant.identity,
            life=node_grant.life,
            restored=node_grant.restored,
            root=root_to_wire(node_grant.root),
            granted_by=_granted_by(node_grant),
        )

    def _granted(self, granted: control_pb2.Granted) -> None:
        node_grant = self._node_grant
        lineage = self._lineage(granted.lineage)
        ended = self._ended(granted.ended)
        below = [cut_from_wire(cut) for cut in granted.below]
        check_below(node_grant.zone or "", below)
        check_epochs(((cut.apex, cut.epoch) for cut in below), node_grant.known_epoch)
        check_near("epoch", granted.epoch, node_grant.epoch)
        root = checked_root(granted, node_grant)
        node_grant.grant(granted.epoch, lineage, ended, below)
        node_grant.record_root(root)
        self._on_granted()
        self._flush_queue.end()
        self._unsaved = ""
        log.info("join.granted", zone=node_grant.zone, epoch=granted.epoch)

    def _lineage(self, told: Iterable[types_pb2.Cut]) -> list[ZoneCut]:
        """Return the zones above as the parent reports them; raises `PeerError`."""
        lineage = [cut_from_wire(cut) for cut in told]
        check_above(self._node_grant.zone, lineage)
        check_epochs(((cut.apex, cut.epoch) for cut in lineage), self._node_grant.known_epoch)
        return lineage

    def _ended(self, told: Iterable[types_pb2.Gone]) -> dict[str, int]:
        """
        Return the ends of zones around this node's, as another node reports them; raises
        `PeerError`.
        """
        ended = ended_from_wire(told)
        check_ended(self._node_grant.zone, ended)
        check_epochs(ended.items(), self._node_grant.known_epoch)
        return ended

    def _log_unsaved(self, error: StoreError) -> None:
        # A change that was not saved (a full disk, say) has not happened. The join is tried again
        # each second, and logged once.
        if str(error) != self._unsaved:
            self._unsaved = str(error)
            log.error("state.write_failed", reason=self._unsaved)

    def _move(self, moved: control_pb2.Moved) -> None:
        (cut,) = self._lineage([moved.parent])
        self._node_grant.set_parent(cut)
        log.info("parent.changed", parent=moved.parent.node, address=moved.parent.grpc)

    async def _serve_stream(self, call: Any) -> str:
        """
        Send signs of life and receive news until the stream ends; return the reason of the end.
        """
        talker = asyncio.ensure_future(self._talk_to_the_end(call))
        try:
            while True:
                try:
                    reply = await read(call, SILENCE)
                except PeerError:
                    raise
                except STREAM_ERRORS:
                    return "lost"
                if reply is None:
                    return "lost"
                match reply.WhichOneof("kind"):
                    case "lineage":
                        self._node_grant.set_lineage(self._lineage(reply.lineage.lineage))
                        self._on_lineage()
                        self._flush_queue.end()
                    case "members":
                        self._apply_news(reply.members, call)
                        self._flush_queue.end()
                    case "moved":
                        self._move(reply.moved)
                        return "moved"
                if talker.done():
                    return "moved" if self._again.is_set() else "lost"
        finally:
            talker.cancel()

    def _apply_news(self, told: control_pb2.Members, call: Any) -> None:
        members = members_from_wire(told)
        mine = self._members.get(self._members.name)
        if mine is not None and any(
            member.removed and member.name == mine.name and member.version > mine.version
            for member in members
        ):
            log.warning("member.rejoined", reason="it was forgotten, and joins anew")
        if told.complete:
            self._members.merge_list(members, call)
        else:
            self._members.merge(members, call)

    async def _talk_to_the_end(self, call: Any) -> None:
        try:
            await self._talk(call)
        except STREAM_ERRORS:
            pass  # the reader of the stream sees its end, too

    async def _talk(self, call: Any) -> None:
        told_members = 0
        now = asyncio.get_running_loop().time
        wait, due = ALIVE_EVERY, now()
        while not self._is_retiring and not self._again.is_set():
            try:
                await asyncio.wait_for(self._news.wait(), wait)
                self._news.clear()
            except TimeoutError:
                pass
            while not self._members.is_told(told_members):
                news, told_members = self._members.news_since(told_members, call)
                if news:
                    members = members_to_wire(news, complete=False)
                    await write(call, JoinRequest(members=members), SILENCE)
            below = self._node_grant.table.below()
            wait = ALIVE_EVERY
            if below == self._told_below:
                await write(call, JoinRequest(alive=control_pb2.Alive()), SILENCE)
            elif now() < due:
                wait = due - now()
            else:
                due = now() + min(len(below) * CUT_PAUSE, LONGEST_PAUSE)
                self._told_below = below
                wire = [cut_to_wire(cut) for cut in below]
                told = control_pb2.Below(below=wire, epoch=self._node_grant.epoch)
                await write(call, JoinRequest(below=told), SILENCE)


def _granted_by(node_grant: NodeGrant) -> control_pb2.PartRef | None:
    """Return the last parent's zone at the epoch that the parent last reported."""
    if not node_grant.lineage:
        return None
    parent = node_grant.lineage[-1]
    return control_pb2.PartRef(zone=parent.apex, epoch=parent.epoch)
