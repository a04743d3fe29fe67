"""What comes from the sockets of clients."""

from __future__ import annotations

import os
from collections.abc import Callable
from select import EPOLLIN
from typing import TYPE_CHECKING, Any

from txbroker.core.reference.inlet import Inlet
from txbroker.core.reference.run import Run

if TYPE_CHECKING:
    from txbroker.core.reference.exchange import Exchange

READ_SIZE = 256 * 1024
"""Bytes that are read at once."""

SHORT = 4096
"""What is longer than this is worth the steps that each run takes."""

FED = 1 << 30
"""In the place of what epoll says of a descriptor: it was read, and that is to be worked on."""

Way = tuple[Any, Any, Any]
"""What `Exchange.pass_on` is to find: the route, the verdict and the edge."""


class Sockets:
    """
    Reads those that are ready, and lets go on at once what nothing has to be decided for: plain
    publishes of QoS 0 that only clients get who are here.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._inlets: dict[int, Inlet] = {}
        self._ask: Callable[[], Way | None] = lambda: None
        self._leave: Callable[[Run, list[tuple[Any, int]]], None]
        self._way: Way | None = None
        self._is_asked = False

    def wire(
        self,
        ask: Callable[[], Way | None],
        leave: Callable[[Run, list[tuple[Any, int]]], None],
    ) -> None:
        """
        `ask`, at most once while nothing else runs, says what is let go on now, None: nothing;
        `leave` gets what could not be given to everybody, or filled an outlet.
        """
        self._ask, self._leave = ask, leave

    def add(self, descriptor: int, inlet: Inlet) -> None:
        """What comes there is for this inlet."""
        self._inlets[descriptor] = inlet

    def remove(self, descriptor: int) -> None:
        """It is read no more."""
        self._inlets.pop(descriptor, None)

    def serve(
        self, ready: list[tuple[int, int]], interest: bytearray, now: float
    ) -> list[tuple[int, int]]:
        """
        Of pairs as epoll has them, those that are for others: `FED` stands for what was read and
        is in the inlet (if that is more of a long packet that is not whole yet, it may be missing).
        `interest` has EPOLLIN where a descriptor may be read.
        """
        left = []
        self._is_asked = False
        for descriptor, events in ready:
            inlet = self._inlets.get(descriptor)
            if inlet is None or events != EPOLLIN or not interest[descriptor] & EPOLLIN:
                left.append((descriptor, events))
                continue
            try:
                data = os.read(descriptor, READ_SIZE)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                data = b""
            if not data:
                left.append((descriptor, events))
            elif not self._take(inlet, data, now):
                inlet.feed(data)
                left.append((descriptor, FED))
        self._way = None
        return left

    def _take(self, inlet: Inlet, data: bytes, now: float) -> bool:
        """Take what was read, if it can go on at once."""
        if len(data) > SHORT:
            return False
        if not self._is_asked:
            self._way, self._is_asked = self._ask(), True
        run = None if self._way is None else inlet.peek(data)
        if run is None or self._way is None:
            return False
        left = self._exchange.pass_on(run, *self._way)
        if left is None:
            return False
        inlet.heard_at = now
        self._exchange.received += run.count
        if left or self._exchange.is_full:
            self._is_asked = False
            self._leave(run, left)
        return True
