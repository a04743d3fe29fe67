"""
SHELL: the directory's requests to other members over gRPC.

A request leaves when all changes on which it may rest are durable in this node's store. Entries and
claims rest on the directory's own tables alone. These requests do not wait for the syncs of busy
clients.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs
import grpc
import grpc.aio

from txbroker.directory.directory import Directory
from txbroker.directory.member_checks import check_answer
from txbroker.directory.reachability import SHORTEST
from txbroker.directory.requests import (
    Answers,
    Claim,
    Lookup,
    OtherView,
    Register,
    Reply,
    Request,
    Take,
    Taken,
)
from txbroker.directory.rpc import directory_convert as wire
from txbroker.directory.rpc.request_streams import RequestStreams
from txbroker.edge.sessions.session_format import check_move
from txbroker.model.errors import PeerError
from txbroker.rpc.channels import Channels
from txbroker.rpc.streams import brief
from txbroker.runtime.aio import Tasks
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2

log = get_logger()

TAKE_TIMEOUT = 5.0
"""Seconds to wait for a session, which can have several megabytes."""

OF_TABLES = (Lookup, Claim, Register)
"""Requests that read and change the directory's own tables alone."""

OWN_TABLES = ("directory.", "members")
"""Prefixes of those tables' names."""

LOOKUPS = 500
"""Ids in one request."""

CLAIMS = 64
"""
Claims that one keeper may owe the answer to; beyond, a claim counts as unanswered at once.

A claim that is decided by others' answers leaves its call behind. A storm left 1,500 calls, and
answers came after five seconds.
"""

LOOKUP_PAUSE = 0.1
"""Seconds for which lookups wait for the reply to an earlier request at the same keeper."""


@attrs.define(slots=True, eq=False)
class _Lookups:
    """The ids of one request to one keeper; `alarm` sends it, however late earlier replies are."""

    alarm: asyncio.TimerHandle | None = None
    client_ids: list[str] = attrs.Factory(list)
    is_answered: asyncio.Event = attrs.Factory(asyncio.Event)
    answer: Reply | None = None


_Key = tuple[str, bytes]
"""Of lookups that may go in one request: the keeper's name, and the view of the members."""


class Tables(Protocol):
    """The durable tables of the node beside messages."""

    def are_safe(self, *beginnings: str) -> bool:
        """True if all changes in tables with these name prefixes are synced."""


class Commit(Protocol):
    """The node's group commit."""

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all changes so far are durable."""


class DirectoryCalls:
    """The calls of `directory`, which `wire` sets before the first one."""

    def __init__(
        self,
        *,
        commit: Commit,
        tables: Tables,
        channels: Channels,
        tasks: Tasks,
        now: Callable[[], float],
    ) -> None:
        self._commit = commit
        self._tables = tables
        self._channels = channels
        self.streams = RequestStreams(channels, tasks)
        self._tasks = tasks
        self._now = now
        self._claims: Counter[str] = Counter()  # unanswered, by keeper
        self._lookups: dict[_Key, deque[_Lookups]] = {}  # to be sent, while a sender runs

    def wire(self, directory: Directory) -> None:
        """Set the directory whose calls these are."""
        self._directory = directory

    async def ask_status(self, address: str) -> control_pb2.StatusReply:
        """Ask the node at a gRPC address who it is; raises `AioRpcError`."""
        stub = self._channels.stub(address)
        reply: control_pb2.StatusReply = await stub.Status(
            control_pb2.StatusRequest(), timeout=SHORTEST
        )
        return reply

    async def call(self, name: str, request: Request) -> Reply | None:
        """Return the reply; None: no reply came, or the node sees other members."""
        directory = self._directory
        if name == directory.members.name:
            answer = directory.handle(name, request)
        elif isinstance(request, Lookup):
            answer = await self._lookup(name, request)
        elif isinstance(request, Claim):
            answer = await self._claim(name, request)
        else:
            answer = await self.send(name, request)
        if isinstance(answer, OtherView):
            share = directory.on_other_view(name, answer)
            if share is not None and name != directory.members.name:
                self._tasks.start(self.send(name, share))
            return None
        return answer

    async def send(self, name: str, request: Request) -> Reply | None:
        """Return the member's reply; None: no reply came, or none that may be used."""
        member = self._directory.members.get(name)
        if member is None:
            return None
        await self.safe(request)
        began = self._now()
        message = wire.question(self._directory.members.name, name, request)
        timeout = self._timeout(name, request)
        try:
            if isinstance(request, Take):
                # On a stream, the megabytes of a session would hold up other replies.
                stub = self._channels.directory(member.grpc)
                reply = await stub.Ask(message, timeout=timeout)
            else:
                reply = await self.streams.ask(member.grpc, message, timeout)
            if reply.node != name:
                self._directory.reach.missed(name, began)
                return None  # another node has the address now
            if not isinstance(request, Take):
                self._directory.reach.answered(name, began)
            self._directory.record_contact(name)
            answer = wire.answer_of(reply)
            if answer is not None:
                check_answer(request, answer, self._directory.greatest)
            if isinstance(answer, Taken):
                check_move(answer.state)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            self._directory.reach.missed(name, began)
            log.debug("directory.unanswered", peer=name, reason=str(error))
            return None
        except PeerError as error:
            log_limited(
                log.warning,
                "directory.invalid_message",
                kind=name,
                peer=name,
                reason=brief(str(error)),
            )
            return None
        if isinstance(answer, OtherView):
            return OtherView(view=answer.view, members=wire.usable(answer.members))
        return answer

    def is_safe(self, request: Request | None) -> bool:
        """True if all changes on which `request` may rest are known to be durable."""
        return isinstance(request, OF_TABLES) and self._tables.are_safe(*OWN_TABLES)

    async def safe(self, request: Request | None = None) -> None:
        """Wait until all changes on which `request` may rest are durable."""
        if self.is_safe(request):
            return
        done = asyncio.Event()
        self._commit.when_durable(done.set)
        await done.wait()

    # internal

    def _timeout(self, name: str, request: Request) -> float:
        """Return the seconds to wait for the reply."""
        if isinstance(request, Take):
            return TAKE_TIMEOUT
        members = len(self._directory.members.places.names)
        return self._directory.reach.reply_wait(name, request, members)

    async def _claim(self, name: str, request: Claim) -> Reply | None:
        """Send a claim; return None if the keeper owes too many answers."""
        if self._claims[name] >= CLAIMS:
            return None
        self._claims[name] += 1
        try:
            return await self.send(name, request)
        finally:
            self._claims[name] -= 1
            if not self._claims[name]:
                del self._claims[name]  # names of members that left would stay

    async def _lookup(self, name: str, request: Lookup) -> Reply | None:
        """
        Gather lookups in one request, also those that come before an earlier request has its reply.

        In a storm of CONNECTs the calls of each turn otherwise delayed all others between the two
        nodes.
        """
        key = name, request.view
        waiting = self._lookups.get(key)
        if waiting is None:
            waiting = self._lookups[key] = deque((_Lookups(),))
            self._tasks.start(self._send_lookups(key, waiting))
        elif not waiting or len(waiting[-1].client_ids) >= LOOKUPS:
            waiting.append(_Lookups())
            loop = asyncio.get_running_loop()
            send = partial(self._send_now, key, waiting, waiting[-1])
            waiting[-1].alarm = loop.call_later(LOOKUP_PAUSE, send)
        gathered = waiting[-1]
        first = len(gathered.client_ids)
        gathered.client_ids += request.client_ids
        await gathered.is_answered.wait()
        answer = gathered.answer
        if not isinstance(answer, Answers):
            return answer
        return Answers(answers=answer.answers[first : first + len(request.client_ids)])

    async def _send_lookups(self, key: _Key, waiting: deque[_Lookups]) -> None:
        """Send the gathered lookups, one request after the reply to the other."""
        try:
            while waiting:
                await self._send_gathered(key, waiting.popleft())
        finally:
            del self._lookups[key]

    def _send_now(self, key: _Key, waiting: deque[_Lookups], gathered: _Lookups) -> None:
        """Send lookups though an earlier request has no reply."""
        waiting.remove(gathered)
        self._tasks.start(self._send_gathered(key, gathered))

    async def _send_gathered(self, key: _Key, gathered: _Lookups) -> None:
        """Send one request, which has all lookups of this turn by now."""
        if gathered.alarm is not None:
            gathered.alarm.cancel()
        name, view = key
        request = Lookup(view=view, client_ids=tuple(gathered.client_ids))
        try:
            gathered.answer = await self.send(name, request)
        finally:
            gathered.is_answered.set()
