"""
SHELL: limits the number of requests that a node reads at once.

gRPC buffers a message up to 4 MiB once its read begins. Without a bound, 500 calls with unfinished
requests took a node to 1.5 GB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from txbroker.runtime.rotation import Rotation

T = TypeVar("T")

AT_ONCE = 24
"""The most requests that are read at the same time."""

GRACE = 0.1
"""Seconds that each request has; then its read ends if other requests wait."""

REQUEST_WAIT = 10.0
"""Seconds that a request has if no other request waits."""


class RequestQueue:
    """The reads under way, oldest first, and the waiting ones by connection, in rotation."""

    def __init__(self) -> None:
        self._free = AT_ONCE
        self._reading: dict[asyncio.Timeout, float] = {}
        self._waiting: Rotation[str, asyncio.Future[None]] = Rotation()
        self._hurry: asyncio.TimerHandle | None = None

    async def read(self, peer: str, read: Callable[[], Awaitable[T]]) -> T:
        """
        Run `read` for the connection `peer` when its turn comes; return its result.

        Raises `TimeoutError` if the request does not come in time.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(REQUEST_WAIT):
            await self._turn(peer)
        try:
            async with asyncio.timeout(REQUEST_WAIT) as limit:
                self._reading[limit] = loop.time()
                try:
                    return await read()
                finally:
                    del self._reading[limit]
        finally:
            self._free += 1
            self._serve_next()

    # internal

    async def _turn(self, peer: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.add(peer, turn)
        self._watch()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free += 1
                self._serve_next()
            raise

    def _serve_next(self) -> None:
        while self._free and self._waiting:
            turn = self._waiting.next()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

    def _watch(self) -> None:
        if self._hurry is None:
            loop = asyncio.get_running_loop()
            self._hurry = loop.call_later(GRACE, self._end_old)

    def _end_old(self) -> None:
        self._hurry = None
        if not self._waiting:
            return
        now = asyncio.get_running_loop().time()
        for limit, since in self._reading.items():
            if now - since >= GRACE and not limit.expired():
                limit.reschedule(now)
        self._watch()
