"""
SHELL: gRPC calls whose messages may exceed 4 MiB, and travel in pieces (`message_pieces`).

A unary call and a streaming call are the same on the wire. So each call is served and made as a
streaming one. A node without pieces sees no difference while messages are small. Both sides refuse
larger messages to such a node in one line.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import attrs
import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from txbroker.delegation.peer_checks import check
from txbroker.model.counters import Counters
from txbroker.model.errors import PeerError
from txbroker.rpc.call_throttle import CallThrottle, CallTurn
from txbroker.rpc.callers import Callers, JoinedConnections
from txbroker.rpc.message_pieces import (
    ANNOUNCEMENT,
    LARGEST,
    LARGEST_OF_STRANGER,
    LARGEST_WHOLE,
    TOGETHER,
    TOGETHER_OF_STRANGERS,
    UPGRADE,
    PieceRoom,
    WholeMessage,
    split,
)
from txbroker.rpc.request_queue import RequestQueue
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

Metadata = tuple[tuple[str, str | bytes], ...]
Code = Callable[[Any], Any]

ANSWER_WAIT = 2.0
"""Seconds that a caller waits to hear whether the other side accepts pieces."""

LARGEST_METADATA = 8 * 1024
"""
Bytes of a call's metadata, as gRPC's default has it; gRPC itself lets more pass.

Calls with 2.4 MB each waited for their turns, and filled 1.6 GB in five seconds.
"""

_TAKES: Metadata = ((ANNOUNCEMENT, "takes"),)
_SENDS: Metadata = ((ANNOUNCEMENT, "sends"),)
"""A caller that sends pieces must first hear that the other side accepts them."""

_EOF: Any = grpc.aio.EOF


def same(message: Any) -> Any:
    """Return the message: the codec of a handler or stub that reads and writes bytes."""
    return message


def _failed(code: grpc.StatusCode, reason: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=reason)


def _too_large(reason: str) -> grpc.aio.AioRpcError:
    return _failed(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)


def _not_taken(size: int, other: str) -> str:
    return f"a message of {size} bytes, and the {other} takes {LARGEST} at most; {UPGRADE}"


# -- callers


class PiecedChannel:
    """
    A channel with the methods that stubs use; each call carries `metadata`.

    A dishonest reply fails its call. Messages of a stream are checked when they are read.
    """

    def __init__(self, channel: grpc.aio.Channel, room: PieceRoom, metadata: Metadata = ()) -> None:
        self._channel = channel
        self._room = room
        self._metadata = metadata

    def unary_unary(self, path: str, **codes: Any) -> Any:
        """Return a call with one request and one reply."""
        method = self._method(path, codes)

        async def call(request: Any, *, timeout: float | None = None) -> Any:
            begun = await method.ask(request, timeout)
            try:
                reply = await begun.read()
                if reply is _EOF or await begun.read() is not _EOF:
                    raise _too_large("not one reply")
                check(reply)
                return reply
            except PeerError as error:
                raise _failed(grpc.StatusCode.DATA_LOSS, f"a lie: {error}") from error
            finally:
                begun.cancel()

        return call

    def unary_stream(self, path: str, **codes: Any) -> Any:
        """Return a call with one request and a stream of replies."""
        method = self._method(path, codes)

        async def call(request: Any, *, timeout: float | None = None) -> AsyncIterator[Any]:
            begun = await method.ask(request, timeout)
            try:
                while (reply := await begun.read()) is not _EOF:
                    yield reply
            finally:
                begun.cancel()

        return call

    def stream_stream(self, path: str, **codes: Any) -> Any:
        """Return a call with two streams."""
        return self._method(path, codes).open

    def _method(self, path: str, codes: dict[str, Any]) -> _Method:
        return _Method(
            small=self._channel.unary_stream(path, None, None),
            any_size=self._channel.stream_stream(path, None, None),
            encode=codes["request_serializer"],
            decode=codes["response_deserializer"],
            metadata=self._metadata,
            room=self._room,
        )


@attrs.frozen(kw_only=True)
class _Method:
    """
    A method of a stub: `small` sends one message whole, `any_size` sends any number of pieces.
    """

    small: Any
    any_size: Any
    encode: Code
    decode: Code
    metadata: Metadata
    room: PieceRoom

    def open(self, *, timeout: float | None = None) -> PiecedCall:
        """Begin a call without a message."""
        metadata = grpc.aio.Metadata(*self.metadata, *_SENDS)
        return PiecedCall(self.any_size(timeout=timeout, metadata=metadata), self)

    async def ask(self, request: Any, timeout: float | None) -> PiecedCall:
        """Begin a call with one message."""
        data = self.encode(request)
        if len(data) <= LARGEST:
            metadata = grpc.aio.Metadata(*self.metadata, *_TAKES)
            return PiecedCall(self.small(data, timeout=timeout, metadata=metadata), self)
        call = self.open(timeout=timeout)
        try:
            await call.send(data, None)
            await call.done_writing()
        except BaseException:
            call.cancel()
            raise
        return call


class PiecedCall:
    """A call to another node; `cancel` it after use."""

    def __init__(self, call: Any, method: _Method) -> None:
        self._call = call
        self._method = method
        self._whole = WholeMessage(method.room, LARGEST_WHOLE)

    async def read(self, patience: float | None = None) -> Any:
        """Return the next message or EOF; `patience`: the seconds that one piece may take."""
        try:
            return await _read(self._call, self._whole, self._method.decode, patience)
        except PeerError as error:
            self.cancel()
            raise _too_large(str(error)) from None

    async def write(self, message: Any, patience: float | None = None) -> None:
        """Send a message; `patience`: the seconds that one piece may take."""
        await self.send(self._method.encode(message), patience)

    async def send(self, data: bytes, patience: float | None) -> None:
        """Send an encoded message."""
        if len(data) > LARGEST and not await self._is_taken():
            self.cancel()
            raise _too_large(_not_taken(len(data), "node"))
        await _write(self._call, data, patience)

    async def done_writing(self) -> None:
        """Close the sending side of the call."""
        await self._call.done_writing()

    def cancel(self) -> None:
        """Cancel the call and discard an incomplete message."""
        self._whole.close()
        self._call.cancel()

    async def _is_taken(self) -> bool:
        """True if the other side has announced that it accepts pieces."""
        try:
            said = await asyncio.wait_for(self._call.initial_metadata(), ANSWER_WAIT)
        except TimeoutError:
            return False
        return ANNOUNCEMENT in said


# -- called nodes


class Pieces(grpc.aio.ServerInterceptor):
    """
    Serves all calls so that their messages may come and go in pieces.

    A host has at most `calls_of_host` concurrent calls.
    """

    def __init__(self, counters: Counters, calls_of_host: int) -> None:
        self.counters = counters
        self.callers = Callers(calls_of_host)
        self.strangers = PieceRoom(TOGETHER_OF_STRANGERS, drops_oldest=True)
        self.let_in = PieceRoom(TOGETHER)
        self.requests = RequestQueue()
        self.joined = JoinedConnections()
        self.throttle = CallThrottle()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.rpartition("/")[2]

        async def serve(_: Any, context: Any) -> None:
            call = _Served(method, context, handler, self)
            try:
                await call.serve()
            finally:
                call.close()

        return grpc.stream_stream_rpc_method_handler(serve)


class _Served:
    """A served call; the handler uses it as its context."""

    def __init__(self, method: str, context: Any, handler: Any, shared: Pieces) -> None:
        self._method = method
        self._context = context
        self._handler = handler
        self._shared = shared
        self._decode = handler.request_deserializer or same
        self._encode = handler.response_serializer or same
        self._whole = WholeMessage(shared.strangers, LARGEST_OF_STRANGER)
        self._said = ""
        self._is_begun = False
        # the counted connection: after the call's end `peer` returns another name
        self._counted = ""
        self._turn: CallTurn | None = None
        self._has_joined = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def serve(self) -> None:
        peer = self._context.peer()
        if not peer:
            # The caller's time was over before the node came to this call: nobody hears an answer,
            # and a count of a host without a name would never go down.
            return
        self._said = await self._announcement()
        if not self._shared.callers.enter(peer):
            await self._refuse("the host has as many calls under way as one may have")
        self._counted = peer
        await self.begin_turn()
        if self._said == "sends":
            await self._context.send_initial_metadata(_TAKES)
        handler = self._handler
        if handler.request_streaming:
            await handler.stream_stream(None, self)
            return
        request = await self.read()
        if request is _EOF:
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no request came")
        if not handler.response_streaming:
            await self.write(await handler.unary_unary(request, self))
        elif inspect.isasyncgenfunction(handler.unary_stream):
            async for reply in handler.unary_stream(request, self):
                await self.write(reply)
        else:
            await handler.unary_stream(request, self)

    def allow_large(self) -> None:
        """Allow the largest messages, as the caller is a node that this node knows."""
        self._whole.allow(self._shared.let_in, LARGEST_WHOLE)

    def note_joined(self) -> None:
        """Note that the caller has joined, until this call ends."""
        self._has_joined = True
        self._shared.joined.enter(self._counted)

    async def begin_turn(self) -> None:
        """Wait for a turn among strangers, unless the call has one, or its caller has joined."""
        if self._turn is None and self._counted not in self._shared.joined:
            self._turn = await self._shared.throttle.take(self._counted)

    def end_turn(self) -> None:
        """Let other calls begin, though this call has not ended."""
        if self._turn is not None:
            self._turn.end()
            self._turn = None

    async def read(self, patience: float | None = None) -> Any:
        """Return the next message or EOF; `patience`: the seconds that one piece may take."""
        try:
            if self._is_begun:
                return await self._read(patience)
            self._is_begun = True
            return await self._shared.requests.read(self._context.peer(), self._read)
        except PeerError as error:
            await self._refuse(str(error))
        except TimeoutError:
            if self._handler.request_streaming:
                raise
            await self._refuse("no request came in time, or others came after it; try again")

    async def write(self, message: Any, patience: float | None = None) -> None:
        """Send a message; `patience`: the seconds that one piece may take."""
        data = self._encode(message)
        if len(data) > LARGEST and not self._said:
            await self._refuse(_not_taken(len(data), "caller"))
        await _write(self._context, data, patience)

    def close(self) -> None:
        """End the call."""
        self._whole.close()
        self.end_turn()
        if self._has_joined:
            self._shared.joined.leave(self._counted)
        if self._counted:
            self._shared.callers.end_call(self._counted)

    async def _read(self, patience: float | None = None) -> Any:
        return await _read(self._context, self._whole, self._decode, patience)

    async def _announcement(self) -> str:
        """Return what the caller announces about pieces; refuse a call with too large metadata."""
        size, said = 0, ""
        for key, value in self._context.invocation_metadata() or ():
            size += len(key) + len(value)
            if key == ANNOUNCEMENT:
                said = value
        if size > LARGEST_METADATA:
            await self._refuse(f"metadata of more than {LARGEST_METADATA} bytes")
        return said

    async def _refuse(self, reason: str) -> None:
        self._shared.counters.add("control.refused")
        peer = self._context.peer()
        log_limited(
            log.warning,
            "call.refused",
            kind=self._method,
            call=self._method,
            peer=peer,
            reason=reason,
        )
        await self._context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)


# -- both


async def _read(call: Any, whole: WholeMessage, decode: Code, patience: float | None) -> Any:
    while True:
        async with asyncio.timeout(patience):
            message = await call.read()
        if message is _EOF:
            return _EOF
        complete = whole.add(message)
        if complete is None:
            continue
        try:
            return decode(complete)
        except DecodeError:
            raise PeerError("a message that is none of this call") from None


async def _write(call: Any, data: bytes, patience: float | None) -> None:
    pieces: Iterable[bytes] = (data,) if len(data) <= LARGEST else split(data)
    for piece in pieces:
        async with asyncio.timeout(patience):
            await call.write(piece)
