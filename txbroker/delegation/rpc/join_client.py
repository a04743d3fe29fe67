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
import contextlib
import random
from collections.abc import Callable, Mapping

from txbroker.delegation.hand_back_child import RetireError
from txbroker.delegation.join_child import (
    JoinChild,
    Joined,
    JoinEnd,
    Moved,
    NewParent,
    ParentLost,
    ParentStrange,
    may_adopt,
)
from txbroker.delegation.join_rules import JoinRefused
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.edge_retirement import EdgeRetirement
from txbroker.delegation.rpc.hand_back_client import HandBackClient
from txbroker.delegation.rpc.join_convert import ChildEnd
from txbroker.delegation.rpc.parent_stream import ParentStream
from txbroker.delegation.timeouts import FIRST_PAUSE, LONGEST_PAUSE, LOST_AFTER
from txbroker.delegation.zone_snapshot import MarkKey, StagedZone
from txbroker.model.errors import NoRoom, PeerError, StoreError
from txbroker.rpc.channels import stranger_in
from txbroker.rpc.link_convert import cut_from_wire
from txbroker.rpc.streams import STREAM_ERRORS, brief, describe, open_stream
from txbroker.rpc.zone_convert import ended_from_wire
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2

log = get_logger()

MOVES_AT_ONCE = 20
"""Referrals to another parent that a join follows without a pause; each leads one level deeper."""


FULL_PAUSE = 60.0
"""Seconds until the next attempt to take a zone for which there was no room."""


class JoinClient:
    """The child's half of join and hand-back; `withdrawal` makes the retirement of a pure edge."""

    def __init__(
        self,
        base: DelegationBase,
        *,
        withdrawal: Callable[[], EdgeRetirement],
        on_granted: Callable[[], None],
        on_refused: Callable[[JoinRefused], None],
        on_lineage: Callable[[], None],
    ) -> None:
        self._procedure = JoinChild(base.node_grant, self)
        self._base = base
        self._runner = base.runner
        self._stream = ParentStream(
            node_grant=base.node_grant,
            members=base.members,
            flush_queue=base.flush_queue,
            move=lambda parent: self._runner.run(self._procedure.move(parent)),
            on_lineage=on_lineage,
        )
        self._again = asyncio.Event()
        self._has_tried = asyncio.Event()
        self._asked: list[asyncio.Future[str]] = []  # for the next request's answer
        self._answered: list[asyncio.Future[str]] = []  # for the present one's, or a later one's
        self._node_grant = base.node_grant
        self._authority = base.authority
        self._withdrawal = withdrawal
        self._on_granted = on_granted
        self._on_refused = on_refused
        self._is_retiring = False
        self._unsaved = ""
        self._stranger = ("", "")
        # The parent's name, life and address while the join stream is up. The node grant may name
        # another parent since.
        self._joined_to = ("", "", "")
        self._is_handing_back = False
        self._silent_since: float | None = None  # the time at which the parent's silence began
        # Requests to the parent are serialized. Otherwise the parent could answer an announcement
        # after the hand-back that followed it. The parent would read it as a claim to the zone.
        self._requests = asyncio.Lock()

    # from the node

    async def run(self) -> None:
        """Join the parent, and join again whenever the stream ends; for ever."""
        pause, moves, is_first = FIRST_PAUSE, 0, True
        while not self._is_retiring:
            parent = self._node_grant.parent
            assert parent is not None, "the root does not join"
            self._again.clear()
            self._answered, self._asked = [*self._answered, *self._asked], []
            self._stream.is_ending = False
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
            if ended != "moved":
                self._has_tried.set()
            if ended == "moved" and moves < MOVES_AT_ONCE:
                moves += 1
                continue
            if ended in ("lost", "ended"):
                pause, moves = FIRST_PAUSE, 0
                log.warning("join.disconnected", parent=parent)
            try:
                wait = pause * random.uniform(0.75, 1.0)
                await asyncio.wait_for(self._again.wait(), wait)
            except TimeoutError:
                pause = min(pause * 2, LONGEST_PAUSE)

    async def first_attempt(self, seconds: float) -> None:
        """Wait until a parent has answered, or could not be asked; for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_tried.wait(), seconds)

    def adopt(self, request: control_pb2.AdoptRequest) -> control_pb2.AdoptReply:
        """Answer another node that claims to be the parent now."""
        node, life, address = self._joined_to
        if node == request.parent.node and life and request.who.life not in ("", life):
            # The real parent lives, and the caller is a copy of it.
            return control_pb2.AdoptReply(accepted=False, other=address)
        return control_pb2.AdoptReply(accepted=self._may_adopt(request))

    def _may_adopt(self, request: control_pb2.AdoptRequest) -> bool:
        node_grant = self._node_grant
        claim = NewParent(
            cut=cut_from_wire(request.parent),
            identity=request.who.identity,
            zone=request.zone,
            epoch=request.epoch,
            ended=ended_from_wire(request.ended),
        )
        try:
            if not may_adopt(node_grant, claim, self._joined_to[0]):
                return False
        except PeerError as error:
            reason = brief(str(error))
            log_limited(
                log.warning, "parent.invalid_message", peer=request.parent.node, reason=reason
            )
            return False
        if node_grant.parent != claim.cut.grpc:
            try:
                node_grant.set_parent(claim.cut, claim.identity, claim.ended)
            except StoreError as error:
                self._log_unsaved(error)
                return False
            log.info("parent.changed", parent=claim.cut.node, address=claim.cut.grpc)
        self.join_again()
        return True

    def join_again(self) -> None:
        """Ask the parent now, even if a request is under way."""
        self._again.set()
        self._stream.end()

    async def ask_again(self, seconds: float) -> str:
        """
        Ask the parent now; return why the zone is not granted, in one line, or "".

        A parent that does not answer within `seconds` is such a reason.
        """
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self.join_again()
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            return f"parent {self._node_grant.parent} does not answer; the node goes on asking"

    def _tell(self, reason: str) -> None:
        """Tell those who asked what the parent has answered: the reason of a refusal, or ""."""
        answered, self._answered = self._answered, []
        for answer in answered:
            if not answer.done():
                answer.set_result(reason)

    # from the join procedure

    def check_room(self, staged_zone: StagedZone) -> None:
        """Refuse a zone with whose state a table here would pass its bound; raises `NoRoom`."""
        assert self._base.lifecycle is not None
        self._base.lifecycle.check_room(staged_zone)

    def serve_grant(self) -> None:
        """Serve the zone at the epoch of the node grant, from this turn on."""
        self._on_granted()
        self._base.flush_queue.end()

    def accept_marks(self, marks: Mapping[MarkKey, int]) -> bool:
        """Add marks to those of the open zone; return False if there is no room."""
        authority = self._authority
        return authority is None or not authority.serving or authority.accept_marks(marks)

    # from operators

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
            self._stream.end()
        finally:
            self._is_handing_back = False

    # internal

    async def _hand_back(self, zone: str, epoch: int) -> None:
        node_grant, authority = self._node_grant, self._authority
        if authority is None or not authority.serving:
            reason = f"node {node_grant.node!r} holds no zone"
            if node_grant.divergent:
                reason += "; settle its divergent branch first: txbroker divergent list"
                reason += f" {node_grant.grpc} {node_grant.zone}"
            raise RetireError(reason)
        if node_grant.parent is None:
            raise RetireError("the root zone has no parent to go back to; stop the node instead")
        if (zone, epoch) != (authority.apex, authority.epoch):
            raise RetireError(f"zone {authority.apex!r} is held at epoch {authority.epoch} now")
        await HandBackClient(self._base, authority, requests=self._requests).run()

    def _ask_ancestors(self) -> None:
        """
        Ask the nodes above a silent parent, if the parent may be gone for good.

        A forgotten parent may be gone. A node that owns no epoch yet asks as well. No parent knows
        such a node, so no new parent would call it.
        """
        node_grant, now = self._node_grant, asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
        is_forgotten = self._base.members.is_removed(node_grant.parent_name)
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
        Run one join stream; return the reason of its end.

        The reasons: moved, refused, lost, ended, strange, retired.
        """
        known = self._node_grant.known_parent
        stub = self._base.channels.stub(parent, "" if known is None else known.node)
        call = open_stream(stub.Join)
        try:
            async with self._requests:
                if self._is_retiring:
                    return "retired"
                told = self._node_grant.table.below()
                asking = self._procedure.ask(parent)
                end = await self._runner.run(asking, ChildEnd(call, self._node_grant))
                ended = self._note_end(parent, end)
            ended = ended or await self._stream.run(call, told)
            return "moved" if ended == "ended" and self._again.is_set() else ended
        finally:
            self._joined_to = ("", "", "")
            call.cancel()

    def _note_end(self, parent: str, end: JoinEnd) -> str:
        """Return the reason of the stream's end, or "" if the stream stays open."""
        match end:
            case Joined(who=who):
                self._unsaved, self._stranger = "", ("", "")
                self._has_tried.set()
                self._tell("")
                if who is not None:
                    self._joined_to = (who.node, who.life, parent)
                return ""
            case Moved():
                return "moved"
            case JoinRefused() as refused:
                self._on_refused(refused)
                self._tell(refused.reason)
                return "refused"
            case ParentStrange(peer=peer):
                self._log_stranger(parent, peer)
                return "strange"
            case ParentLost():
                return "lost"

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

    def _log_unsaved(self, error: StoreError) -> None:
        # A change that was not saved (a full disk, say) has not happened. The join is tried again
        # each second, and logged once.
        if str(error) != self._unsaved:
            self._unsaved = str(error)
            log.error("state.write_failed", reason=self._unsaved)
