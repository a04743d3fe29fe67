"""
SHELL: limits the calls of strangers at work: one at a time, and connections take turns.

gRPC hands the calls of a method to the node one after the other. Each call comes some turns of the
event loop behind the last. While all calls of a storm were at work, each such turn was long. Then
the call of a child reached its handler half a second late. So the calls of a storm wait here. While
a crowd waits, no call begins as long as others still arrive. The call of a child may be behind
those.
"""

from __future__ import annotations

import asyncio

from txbroker.runtime.rotation import Rotation

PATIENCE = 0.01
"""
Seconds that the others wait for the end of a call; then the next call begins beside it.

Otherwise a call that waits for something itself would hold up all others.
"""

CROWD = 64
"""
Waiting calls that need no rest before each.

Nodes that have not joined here, such as other children of the parent, ask for many clients at once.
With a rest before each, their CONNECTs took longer.
"""

REST = 8
"""Turns of the event loop without an arrival, after which no call waits unseen in gRPC."""


class CallThrottle:
    """The calls of strangers to one node."""

    def __init__(self) -> None:
        self._waiting: Rotation[str, asyncio.Future[CallTurn]] = Rotation()
        self._turn: CallTurn | None = None  # of the call that the others wait for
        self._begun = 0.0  # time of the last begin
        self._left = 0  # turns of the event loop that are left of the rest

    async def take(self, peer: str) -> CallTurn:
        """Return the turn of a call of the connection `peer` when it comes."""
        if self._turn is None and not self._waiting:
            return self._begin()
        called: asyncio.Future[CallTurn] = asyncio.get_running_loop().create_future()
        self._waiting.add(peer, called)
        self._left = REST
        try:
            return await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                called.result().end()
            raise

    def end(self, turn: CallTurn) -> None:
        """End a turn; the next call begins, unless another turn is running."""
        if self._turn is turn:
            self._turn = None
            self._left = REST
            self._go_on()

    # internal

    def _begin(self) -> CallTurn:
        loop = asyncio.get_running_loop()
        self._begun = loop.time()
        self._turn = turn = CallTurn(self)
        loop.call_later(PATIENCE, turn.end)
        return turn

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        is_crowd = len(self._waiting) > CROWD
        if is_crowd and self._left and loop.time() < self._begun + PATIENCE:
            self._left -= 1
            loop.call_soon(self._go_on)
            return
        while self._waiting and self._turn is None:
            called = self._waiting.next()
            if not called.done():
                called.set_result(self._begin())


class CallTurn:
    """The turn of a call at work."""

    __slots__ = ("_throttle",)

    def __init__(self, throttle: CallThrottle) -> None:
        self._throttle = throttle

    def end(self) -> None:
        """Let the next call begin, whether this one has ended or not."""
        self._throttle.end(self)
