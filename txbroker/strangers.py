"""
Connections that have not said who they are, and the bytes that are held for them.

A limit for each of them does not bound the memory of ten thousand. Beyond `limits.unauthenticated`
the oldest one is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from txbroker.counters import Counters
from txbroker.telemetry import get_logger, tell_repeated

log = get_logger()

MOST_HELD = 64 * 1024 * 1024
"""`limits.unauthenticated`, where the topology file does not say otherwise."""


class Stranger(Protocol):
    """A connection before its CONNECT or Hello."""

    def push_out(self) -> str:
        """Close it at once; its peer, for the log."""


class Strangers:
    """The strangers at a node's ports that have sent a part of their first packet."""

    def __init__(self, counters: Counters, most: int = MOST_HELD) -> None:
        self.most = most
        self.held = 0
        self._counters = counters
        self._sizes: OrderedDict[Stranger, int] = OrderedDict()

    def hold(self, stranger: Stranger, size: int) -> None:
        """So many bytes are held for this one, or will be; it may be closed for that."""
        self.held += size - self._sizes.get(stranger, 0)
        self._sizes[stranger] = size
        while self.held > self.most:
            oldest = next(iter(self._sizes))
            self.forget(oldest)
            self._counters.add("unauthenticated.over_limit")
            tell_repeated(
                log.warning,
                "unauthenticated.over_limit",
                limit="limits.unauthenticated",
                value=self.most,
                peer=oldest.push_out(),
            )

    def forget(self, stranger: Stranger) -> None:
        """It has said who it is, or is gone."""
        self.held -= self._sizes.pop(stranger, 0)
