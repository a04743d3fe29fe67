"""
Connections for which bytes are held: those that have not said who they are, and clients that have
sent a part of a packet.

A limit for each of them does not bound the memory of ten thousand. Beyond one for all of a kind the
oldest one is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, Protocol

from txbroker.model.counters import Counters
from txbroker.runtime.structured_log import get_logger, tell_repeated

log = get_logger()

MOST_HELD = 64 * 1024 * 1024
"""`limits.unauthenticated`, where the topology file does not say otherwise."""


MOST_HALVES = 256 * 1024 * 1024
"""Bytes of packets of clients that are not whole; at least two of the largest have room."""


class ByteHolder(Protocol):
    """A connection for which bytes are held."""

    def push_out(self) -> str:
        """Close it at once; its peer, for the log."""


class HeldBytes:
    """Those of one kind, of which at most `most` bytes are held; see the module's text."""

    EVENT: ClassVar[str]
    LIMIT: ClassVar[str]

    def __init__(self, counters: Counters, most: int) -> None:
        self.most = most
        self.held = 0
        self._counters = counters
        self._sizes: OrderedDict[ByteHolder, int] = OrderedDict()

    def hold(self, holder: ByteHolder, size: int) -> None:
        """So many bytes are held for this one, or will be; it may be closed for that."""
        self.held += size - self._sizes.get(holder, 0)
        self._sizes[holder] = size
        while self.held > self.most:
            oldest = next(iter(self._sizes))
            self.forget(oldest)
            self._counters.add(self.EVENT)
            peer = oldest.push_out()
            tell_repeated(log.warning, self.EVENT, limit=self.LIMIT, value=self.most, peer=peer)

    def forget(self, holder: ByteHolder) -> None:
        """Nothing is held for it any more."""
        if holder in self._sizes:
            self.held -= self._sizes.pop(holder)


class Unauthenticated(HeldBytes):
    """The strangers at a node's ports that have sent a part of their first packet."""

    EVENT = "unauthenticated.over_limit"
    LIMIT = "limits.unauthenticated"

    def __init__(self, counters: Counters, most: int = MOST_HELD) -> None:
        super().__init__(counters, most)


class HalfPackets(HeldBytes):
    """Clients that have sent a part of a packet of at most `packet` bytes."""

    EVENT = "packet.halves_over_limit"
    LIMIT = "limits.packet"

    def __init__(self, counters: Counters, packet: int = 0) -> None:
        super().__init__(counters, most_halves(packet))


def most_halves(packet: int) -> int:
    """Bytes of all halves together, where a packet may have so many."""
    return max(MOST_HALVES, 2 * packet)
