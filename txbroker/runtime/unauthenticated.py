"""
Bounds the bytes that a node holds for unidentified connections and for clients' partial packets.

A limit for each connection does not bound the memory of ten thousand. So each of the two kinds has
one limit for all its connections. Above that limit the oldest connection is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, Protocol

from txbroker.model.counters import Counters
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

MOST_HELD = 64 * 1024 * 1024
"""Default of `limits.unauthenticated` of the topology file, in bytes."""


MOST_HALVES = 256 * 1024 * 1024
"""Bytes of all clients' partial packets; at least two of the largest packets fit."""


class ByteHolder(Protocol):
    """A connection for which the node holds bytes: `awaited` at present."""

    @property
    def awaited(self) -> int:
        """Return the bytes of its incomplete packet."""

    def push_out(self) -> str:
        """Close the connection at once; return its peer's name for the log."""


class HeldBytes:
    """Connections of one kind, for which the node holds at most `most` bytes in all."""

    EVENT: ClassVar[str]
    LIMIT: ClassVar[str]

    def __init__(self, counters: Counters, most: int) -> None:
        self.most = most
        self.held = 0
        self._counters = counters
        self._sizes: OrderedDict[ByteHolder, int] = OrderedDict()

    def hold(self, holder: ByteHolder, size: int) -> None:
        """Set the bytes held for a connection; close the oldest ones, maybe it, above the limit."""
        self._count(holder, size)
        while self.held > self.most:
            oldest, counted = next(iter(self._sizes.items()))
            self.forget(oldest)
            # The core forwards the end of a packet and tells nobody: its sender must not be closed.
            left = oldest.awaited
            if left >= counted:
                self._push_out(oldest)
            elif left:
                self._count(oldest, left)

    def forget(self, holder: ByteHolder) -> None:
        """Release the bytes held for a connection."""
        if holder in self._sizes:
            self.held -= self._sizes.pop(holder)

    def _count(self, holder: ByteHolder, size: int) -> None:
        self.held += size - self._sizes.get(holder, 0)
        self._sizes[holder] = size

    def _push_out(self, holder: ByteHolder) -> None:
        self._counters.add(self.EVENT)
        peer = holder.push_out()
        log_limited(log.warning, self.EVENT, limit=self.LIMIT, value=self.most, peer=peer)


class Unauthenticated(HeldBytes):
    """Strangers at a node's ports that have sent a part of their first packet."""

    EVENT = "unauthenticated.over_limit"
    LIMIT = "limits.unauthenticated"

    def __init__(self, counters: Counters, most: int = MOST_HELD) -> None:
        super().__init__(counters, most)


class HalfPackets(HeldBytes):
    """Clients that have sent a part of a packet; a packet has at most `packet` bytes."""

    EVENT = "packet.halves_over_limit"
    LIMIT = "limits.packet"

    def __init__(self, counters: Counters, packet: int = 0) -> None:
        super().__init__(counters, most_halves(packet))


def most_halves(packet: int) -> int:
    """Return the limit for all partial packets, for packets of up to `packet` bytes."""
    return max(MOST_HALVES, 2 * packet)
