"""
SHELL: this node's replies to requests of other members, in calls of their own or on streams.

A reply leaves when all changes for it are durable in this node's store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import attrs
import grpc

from txbroker.directory.directory import Directory
from txbroker.directory.member_checks import check_request
from txbroker.directory.requests import Ping, Registered, Reply, Request, ShareMembers
from txbroker.directory.rpc import directory_convert as wire
from txbroker.directory.rpc.directory_calls import DirectoryCalls
from txbroker.directory.rpc.request_streams import MOST, WRITE_WAIT, count_together
from txbroker.model.counters import Counters
from txbroker.model.errors import PeerError
from txbroker.rpc.streams import STREAM_ERRORS, begin_turn, brief, end_turn, read, write
from txbroker.runtime.aio import Tasks
from txbroker.runtime.fair_shares import FairShares
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import directory_pb2, directory_pb2_grpc

log = get_logger()

STREAMS = 64
"""
Streams that are served at a time; other members ask in calls of their own.

gRPC keeps up to 4 MiB of a message that a stranger does not complete.
"""

SILENCE = 30.0
"""Seconds without a request after which a stream ends; its opener ends it long before."""

UNREPLIED = 500
"""Requests of one stream that wait for a sync; no more are read meanwhile."""


@attrs.frozen
class _Answered:
    """A request and its answer. None: a kind that only a newer node knows, or no answer is due."""

    request: Request | None
    answer: Reply | None


class RequestServer(directory_pb2_grpc.DirectoryServicer):
    """The gRPC service of the directory, which `wire` sets before any call."""

    def __init__(
        self,
        *,
        calls: DirectoryCalls,
        shares: FairShares,
        tasks: Tasks,
        flush_queue: FlushQueue,
        counters: Counters,
    ) -> None:
        self._calls = calls
        self._shares = shares
        self._tasks = tasks
        self._flush_queue = flush_queue
        self._counters = counters
        self._ready = asyncio.Event()
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def wire(self, directory: Directory) -> None:
        """Set the directory whose replies these are."""
        self._directory = directory

    @property
    def stream_count(self) -> int:
        """Return the number of streams that are served."""
        return len(self._streams)

    def start(self) -> None:
        """Begin to serve: the directory has started."""
        self._ready.set()

    def close(self) -> None:
        """End the streams. gRPC waits for them when it stops, and their openers end them late."""
        self._is_closed = True
        for stream in self._streams:
            stream.cancel()

    async def Ask(self, request: directory_pb2.Question, context: Any) -> directory_pb2.Reply:
        await self._ready.wait()
        try:
            answered = self._answer(request)
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if answered.answer is not None and not isinstance(answered.request, Ping):
            end_turn(context)
            await self._await_durable(answered.request)
        return wire.reply(self._directory.members.name, answered.answer)

    async def AskMany(  # type: ignore[override]
        self, request_iterator: AsyncIterator[directory_pb2.Questions], context: Any
    ) -> None:
        await self._ready.wait()
        stream = asyncio.current_task()
        assert stream is not None
        if self._is_closed or len(self._streams) >= STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "as many streams as one serves")
        self._streams.add(stream)
        replies = _ReplyStream(context, self._tasks)
        try:
            while (message := await read(context, SILENCE)) is not None:
                await begin_turn(context)
                if not await self._serve(message, replies):
                    await replies.drain()
                    return
                end_turn(context)
                await replies.await_room()
        except STREAM_ERRORS:
            pass  # its opener asks again
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
        finally:
            self._streams.discard(stream)
            replies.close()

    # internal

    async def _serve(self, message: directory_pb2.Questions, replies: _ReplyStream) -> bool:
        """Answer the requests of a message; return False if one is not to be answered."""
        if len(message.questions) > MOST:
            raise PeerError(f"{len(message.questions)} requests in a message")
        for place, question in enumerate(message.questions):
            if place:
                await asyncio.sleep(0)  # a request can be a millisecond's work
            answered = self._answer(question)
            reply = wire.reply(self._directory.members.name, answered.answer)
            reply.number = question.number
            if answered.answer is None:
                replies.send(reply)
                return False
            if isinstance(answered.request, Ping) or self._calls.is_safe(answered.request):
                replies.send(reply)
            else:
                replies.send_after(self._await_durable(answered.request), reply)
        return True

    async def _await_durable(self, request: Request | None) -> None:
        # A `Ping` asks for a living node, and a slow disk must not look like a dead one. So its
        # reply does not come here.
        with self._shares.hurry():
            await self._calls.safe(request)

    def _answer(self, question: directory_pb2.Question) -> _Answered:
        """Answer a request; raises `PeerError` for a dishonest one."""
        if question.target != self._directory.members.name:
            return _Answered(None, None)
        try:
            request = wire.request_of(question)
            if request is not None:
                check_request(request, self._directory.greatest)
        except PeerError as error:
            reason, peer = brief(str(error)), brief(question.source)
            log_limited(
                log.warning, "directory.invalid_message", kind=peer, peer=peer, reason=reason
            )
            raise PeerError(reason) from None
        answer = None
        if request is not None:
            answer = self._directory.handle(question.source, _checked(request))
            self._flush_queue.end()
        if answer is None:
            # A refused request changed no table, and waits for no sync: strangers must not slow
            # down members.
            self._counters.add("directory.refused")
            # The log line has no kind: a stranger that invents names would cause a line for each.
            log_limited(log.info, "directory.refused", peer=brief(question.source))
        elif isinstance(answer, Registered) and answer.full:
            self._counters.add("directory.full", len(answer.full))
        return _Answered(request, answer)


class _ReplyStream:
    """The replies of one stream."""

    def __init__(self, context: Any, tasks: Tasks) -> None:
        self._context = context
        self._tasks = tasks
        self._waits: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._unsent: list[directory_pb2.Reply] = []
        self._sender: asyncio.Task[None] | None = None

    def send(self, reply: directory_pb2.Reply) -> None:
        """Send a reply at the next turn of the loop, with others that have come by then."""
        self._unsent.append(reply)
        if self._sender is None:
            self._sender = self._tasks.start(self._send())

    def send_after(self, wait: Coroutine[Any, Any, None], reply: directory_pb2.Reply) -> None:
        """Send a reply when the wait for a sync is over."""

        def over(task: asyncio.Task[None]) -> None:
            self._waits.discard(task)
            self._has_room.set()
            if not task.cancelled() and task.exception() is None:
                self.send(reply)

        task = self._tasks.start(wait)
        self._waits.add(task)
        task.add_done_callback(over)

    async def await_room(self) -> None:
        """Wait until few replies wait for a sync."""
        while len(self._waits) >= UNREPLIED:
            self._has_room.clear()
            await self._has_room.wait()

    async def drain(self) -> None:
        """Wait until all replies are sent that need no sync."""
        if self._sender is not None:
            await self._sender

    def close(self) -> None:
        """Drop what waits: the stream is over."""
        for task in self._waits:
            task.cancel()

    async def _send(self) -> None:
        try:
            while self._unsent:
                await write(self._context, self._take_batch(), WRITE_WAIT)
        except STREAM_ERRORS:
            self._unsent.clear()  # the stream is over
        finally:
            self._sender = None

    def _take_batch(self) -> directory_pb2.Replies:
        count = count_together(self._unsent)
        batch, self._unsent = self._unsent[:count], self._unsent[count:]
        return directory_pb2.Replies(replies=batch)


def _checked(request: Request) -> Request:
    """Drop the unusable members of a request: another node's word is checked before use."""
    if isinstance(request, ShareMembers):
        return ShareMembers(members=wire.usable(request.members))
    return request
