"""
SHELL: requests to another member over one gRPC stream, which the first request opens.

A call of its own costs both nodes four times the processor time of a message on a stream. The
requests of one turn of the loop go in one message.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from txbroker.model.errors import PeerError
from txbroker.rpc.channels import Channels
from txbroker.rpc.streams import STREAM_ERRORS, open_stream, read, write
from txbroker.runtime.aio import Tasks
from txbroker.v1 import directory_pb2

IDLE = 2.0
"""
Seconds without a waiting request after which a stream ends.

gRPC pings the peers of streams that are silent for three seconds. A ping costs both nodes more than
a message.
"""

WRITE_WAIT = 5.0
"""Seconds in which the other node must take a message."""

MOST = 500
"""Requests in one message; a node refuses more."""

MOST_BYTES = 64 * 1024
"""Bytes of one message that has more than one request or reply: a long one holds up others."""

WAITING = 2_000
"""Requests to one node without a reply, beyond which a request fails at once."""

REFUSED = 10.0
"""Seconds for which a node that serves no stream is asked for none."""

NO_STREAM = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""The answers of an older node, and of one that serves no more streams."""


class NoStreamError(Exception):
    """The request was not sent: the stream ended before, or the node serves none."""


class RequestStreams:
    """The streams of a node to others, by address."""

    def __init__(self, channels: Channels, tasks: Tasks) -> None:
        self._channels = channels
        self._tasks = tasks
        self._streams: dict[str, RequestStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    async def ask(
        self, address: str, question: directory_pb2.Question, timeout: float
    ) -> directory_pb2.Reply:
        """Return the reply; raises `AioRpcError`, `TimeoutError` or `PeerError`."""
        stub = self._channels.directory(address)
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = RequestStream(stub.AskMany, self._tasks)
            self._tasks.start(self._keep(address, stream))
        try:
            return await stream.ask(question, timeout)
        except NoStreamError:
            return await stub.Ask(question, timeout=timeout)

    async def _keep(self, address: str, stream: RequestStream) -> None:
        try:
            await stream.run()
            if stream.is_refused:
                await asyncio.sleep(REFUSED)
        finally:
            del self._streams[address]


class RequestStream:
    """One stream, which `method` opens. `is_refused`: True if the node serves none."""

    def __init__(self, method: Callable[..., Any], tasks: Tasks) -> None:
        self.is_refused = False
        self._method = method
        self._tasks = tasks
        self._number = 0
        self._waiting: dict[int, asyncio.Future[directory_pb2.Reply]] = {}
        self._unsent: list[directory_pb2.Question] = []
        self._is_sending = False
        self._until = 0.0
        self._call: Any = None
        self._idle: asyncio.Timeout | None = None

    async def ask(self, question: directory_pb2.Question, timeout: float) -> directory_pb2.Reply:
        """Return the reply; raises as `RequestStreams.ask`, and `NoStreamError`."""
        if self.is_refused:
            raise NoStreamError
        if len(self._waiting) >= WAITING:
            raise TimeoutError("the node owes too many replies")
        loop = asyncio.get_running_loop()
        self._number += 1
        number = question.number = self._number
        waiting: asyncio.Future[directory_pb2.Reply] = loop.create_future()
        self._waiting[number] = waiting
        self._unsent.append(question)
        self._stay(timeout + IDLE)
        self._send_soon()
        try:
            async with asyncio.timeout(timeout):
                return await waiting
        finally:
            del self._waiting[number]
            if not self._waiting:
                self._stay(IDLE)

    async def run(self) -> None:
        """Send the requests and receive the replies, until the stream is idle or broken."""
        self._call = open_stream(self._method)
        error: BaseException = NoStreamError()
        try:
            async with asyncio.timeout_at(self._until) as self._idle:
                self._send_soon()
                while (message := await read(self._call, None)) is not None:
                    for reply in message.replies:
                        self._settle(reply)
        except STREAM_ERRORS as broken:
            if self._idle is not None and not self._idle.expired():
                error = broken
        finally:
            self._idle = None
            self._call.cancel()
            self._fail(error)

    # internal

    def _stay(self, seconds: float) -> None:
        """Let the stream end in so many seconds, or later if another request waits longer."""
        when = asyncio.get_running_loop().time() + seconds
        self._until = max(when, self._until) if self._waiting else when
        if self._idle is not None and not self._idle.expired():
            self._idle.reschedule(self._until)

    def _settle(self, reply: directory_pb2.Reply) -> None:
        waiting = self._waiting.get(reply.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, grpc.aio.AioRpcError) and error.code() in NO_STREAM:
            self.is_refused = True
            error = NoStreamError()
        elif not isinstance(error, NoStreamError | grpc.aio.AioRpcError | PeerError):
            error = TimeoutError(str(error))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _send_soon(self) -> None:
        """Send at the next turn of the loop what has come by then."""
        if self._idle is not None and self._unsent and not self._is_sending:
            self._is_sending = True
            self._tasks.start(self._send())

    async def _send(self) -> None:
        try:
            while self._unsent:
                await write(self._call, self._take_batch(), WRITE_WAIT)
        except STREAM_ERRORS:
            # The node has ended the stream in order: `read` will call it an error of gRPC.
            self._fail(NoStreamError())
        finally:
            self._is_sending = False

    def _take_batch(self) -> directory_pb2.Questions:
        """Return the next message, without requests whose time is over."""
        unsent = [question for question in self._unsent if question.number in self._waiting]
        count = count_together(unsent[:MOST])
        self._unsent = unsent[count:]
        return directory_pb2.Questions(questions=unsent[:count])


def count_together(parts: Sequence[Message]) -> int:
    """Return how many of the first requests or replies go in one message, at least one."""
    sizes = list(accumulate([part.ByteSize() for part in parts]))
    return max(1, bisect_right(sizes, MOST_BYTES))
