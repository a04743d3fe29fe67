"""
SHELL: gRPC channels to other nodes' control planes, one for each address.

A call names the node that it is for, if the caller knows the node. Another node at that address
refuses the call. Otherwise its "not mine" would count as the answer of the node that had the
address before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from txbroker.delegation.peer_checks import check
from txbroker.model.errors import PeerError
from txbroker.rpc.message_pieces import LARGEST, TOGETHER, PieceRoom
from txbroker.rpc.pieced_calls import PiecedChannel
from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.directory_pb2_grpc import DirectoryStub

if TYPE_CHECKING:
    from txbroker.v1.control_pb2_grpc import ControlAsyncStub
    from txbroker.v1.directory_pb2_grpc import DirectoryAsyncStub

CALLS = 4_000
"""
The most concurrent calls and streams of a node: three of each of a thousand nodes, and others.
"""

CALLS_OF_HOST = 2_000
"""The most concurrent calls of one host: a flood from one host leaves places for others."""

STREAMS = 200
"""The most concurrent calls of one connection."""

OPTIONS = (
    # A network cut and its end must be noticed within seconds, not minutes. A ping costs both ends
    # more than a millisecond. So a connection with a join stream's signs of life gets none.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    # Two nodes in one process must not share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    # No message is compressed: 0.6 MB on the wire became 2.7 GB of memory.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.enable_http_proxy", 0),
)

PENDING = 300
"""
Calls that wait for a turn of the event loop, beyond which gRPC refuses some, and soon all.

Each keeps its metadata, up to 64 KiB (`CallHeaders`). A storm of 256 calls is below the bound.
"""

SERVER_OPTIONS = (
    *OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.server.max_pending_requests", PENDING),
    ("grpc.server.max_pending_requests_hard_limit", PENDING + PENDING // 3),
    # Bytes of each stream that gRPC reads ahead: without this, a fast sender would fill megabytes.
    ("grpc.http2.lookahead_bytes", 16 * 1024),
    ("grpc.http2.bdp_probe", 0),
)

STRANGER = "another node has this address: "
"""Prefix of the refusal of a call for another node; this node's name follows."""

LIMIT = 1_000
"""The most open channels; beyond that the least recently used channel is dropped."""

CALL_TIMEOUT = 2.0
"""Seconds that a node has for an answer."""


_ADDRESSEE = "txbroker-node-bin"
"""Metadata of a call: the name of the node that the call is for."""


class Channels:
    """Stubs by address (host:port); gRPC resolves names at each connect."""

    def __init__(self) -> None:
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._stubs: OrderedDict[tuple[str, str], ControlAsyncStub] = OrderedDict()
        self._directories: dict[str, DirectoryAsyncStub] = {}
        self._room = PieceRoom(TOGETHER)

    def __len__(self) -> int:
        return len(self._channels)

    def stub(self, address: str, node: str = "") -> ControlAsyncStub:
        """Return the stub for a node's control plane; `node`: other nodes must refuse the calls."""
        channel = self._channel(address)
        stub = self._stubs.pop((address, node), None)
        if stub is None:
            metadata = ((_ADDRESSEE, node.encode()),) if node else ()
            stub = _make_stub(PiecedChannel(channel, self._room, metadata))
            if len(self._stubs) >= LIMIT:
                self._stubs.popitem(last=False)
        self._stubs[address, node] = stub
        return stub

    def directory(self, address: str) -> DirectoryAsyncStub:
        """Return the stub for a node's client directory."""
        channel = self._channel(address)
        stub = self._directories.get(address)
        if stub is None:
            stub = _make_directory_stub(PiecedChannel(channel, self._room))
            self._directories[address] = stub
        return stub

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.pop(address, None)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=OPTIONS)
            if len(self._channels) >= LIMIT:
                gone, _ = self._channels.popitem(last=False)
                self._directories.pop(gone, None)
                for key in [key for key in self._stubs if key[0] == gone]:
                    del self._stubs[key]
        self._channels[address] = channel
        return channel

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, OrderedDict()
        self._stubs.clear()
        self._directories.clear()
        for channel in channels.values():
            await channel.close(None)


_make_stub: Callable[[Any], ControlAsyncStub] = cast("Any", ControlStub)
_make_directory_stub: Callable[[Any], DirectoryAsyncStub] = cast("Any", DirectoryStub)


def why(address: str, error: Any, late: str = "is it a node's gRPC address?") -> str:
    """
    The line that says why a node gave no answer, and what to look at: `late` where the call's time
    has passed. `error` is of gRPC; None: nobody was asked.
    """
    code = None if error is None else error.code()
    if code in (None, grpc.StatusCode.UNAVAILABLE):
        return f"{address} cannot be reached; is it a node's gRPC address, and does the node run?"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{address} gave no answer in time; {late}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"{address} is not a txbroker node, or one of another version"
    return f"{address}: {' '.join((error.details() or code.name).split())}"


def stranger_in(error: BaseException) -> str | None:
    """Return the node that refused a call for another node; None: the call failed otherwise."""
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
    is_refusal = details is not None and details.startswith(STRANGER)
    return details.removeprefix(STRANGER) if details and is_refusal else None


class Doorkeeper(grpc.aio.ServerInterceptor):
    """
    Refuses calls for nodes of another name than `node`, and dishonest requests.

    Messages of a stream are checked when they are read.
    """

    def __init__(self, node: str) -> None:
        self._node = node

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        for key, value in handler_call_details.invocation_metadata or ():
            if key == _ADDRESSEE and value != self._node.encode():
                return self._refusal(handler)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        return _checking(handler)

    def _refusal(self, handler: Any) -> Any:
        async def refuse(request: Any, context: Any) -> None:
            code = grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, f"{STRANGER}{self._node}")

        if handler is None:
            return handler
        kind = "stream" if handler.request_streaming else "unary"
        back = "stream" if handler.response_streaming else "unary"
        make = getattr(grpc, f"{kind}_{back}_rpc_method_handler")
        return make(
            refuse,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _checking(handler: Any) -> Any:
    """Return a handler that checks the request first."""

    async def ask(request: Any, context: Any) -> Any:
        try:
            check(request)
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        ask,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
