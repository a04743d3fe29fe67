"""SHELL: gRPC channels to other nodes' control planes, one for each address."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

import grpc
import grpc.aio

from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.directory_pb2_grpc import DirectoryStub

if TYPE_CHECKING:
    from txbroker.v1.control_pb2_grpc import ControlAsyncStub
    from txbroker.v1.directory_pb2_grpc import DirectoryAsyncStub

LARGEST_CALL = 320 * 1024 * 1024
"""Bytes: a message as large as MQTT has any, and what goes along with it."""

OPTIONS = (
    # A cut and its healing are to be noticed within seconds, not minutes. A ping costs both ends
    # more than a millisecond: where a join stream shows signs of life there is none.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", LARGEST_CALL),
    ("grpc.max_send_message_length", LARGEST_CALL),
    # Two nodes in one process must not share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS = (
    *OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)

LIMIT = 1_000
"""Channels kept; the one that was not used for longest goes."""

CALL_TIMEOUT = 2.0
"""Seconds that a node has for an answer."""


_Stubs: TypeAlias = "tuple[grpc.aio.Channel, ControlAsyncStub, DirectoryAsyncStub]"


class Channels:
    """Stubs by address (host:port); names are resolved by gRPC at each connect."""

    def __init__(self) -> None:
        self._channels: OrderedDict[str, _Stubs] = OrderedDict()

    def stub(self, address: str) -> ControlAsyncStub:
        """The stub for a node's control plane."""
        return self._stubs(address)[1]

    def directory(self, address: str) -> DirectoryAsyncStub:
        """The stub for a node's client directory."""
        return self._stubs(address)[2]

    def _stubs(self, address: str) -> _Stubs:
        known = self._channels.pop(address, None)
        if known is None:
            channel = grpc.aio.insecure_channel(address, options=OPTIONS)
            known = (channel, ControlStub(channel), DirectoryStub(channel))
            if len(self._channels) >= LIMIT:
                self._channels.popitem(last=False)
        self._channels[address] = known
        return known

    async def close(self) -> None:
        """Close all."""
        channels, self._channels = self._channels, OrderedDict()
        for channel, *_ in channels.values():
            await channel.close(None)
