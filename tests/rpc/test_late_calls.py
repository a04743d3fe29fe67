"""Calls to a node that was frozen: those whose callers have gone are served no more."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio

from tests.support.cluster import on_loop
from txbroker.model.counters import Counters
from txbroker.rpc.pieced_calls import Pieces

METHOD = "/txbroker.test/Echo"
SHORT, FROZEN, LONG = 0.1, 0.4, 30.0
"""Seconds: a call's time, that of the node's freeze, and of a call that is served."""

LATE = 5
"""Calls whose time is over before the node goes on."""


class Echo(grpc.GenericRpcHandler):
    """Answers with the request, and notes it."""

    def __init__(self) -> None:
        self.served: list[bytes] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def echo(request: bytes, _: Any) -> bytes:
            self.served.append(request)
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


@on_loop
async def test_call_whose_time_was_over_is_not_served() -> None:
    """Nor counted for ever as one of its host, whose later calls would be refused."""
    pieces, handler = Pieces(Counters(), LATE), Echo()
    server = grpc.aio.server(interceptors=[pieces])
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)

        async def answer(request: bytes) -> bytes:
            future = call.future(request, timeout=LONG)
            reply: bytes = await asyncio.to_thread(future.result)
            return reply

        assert await answer(b"before") == b"before"
        for _ in range(LATE):
            late = call.future(b"late", timeout=SHORT)
            time.sleep(FROZEN)
            assert late.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert await answer(b"after") == b"after"
    await server.stop(None)

    assert [b"before", b"after"] == handler.served
    assert not pieces.callers._calls
