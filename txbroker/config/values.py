"""
The values of a topology file: one attrs class a mapping, with what holds where a key is left out.

How a value is read from what YAML gives is in hooks.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NewType

import attrs

from txbroker.model.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY = 86_400.0

Size = NewType("Size", int)
"""Bytes."""
Seconds = NewType("Seconds", float)
Timeout = NewType("Timeout", float)
"""Seconds, more than 0."""
Count = NewType("Count", int)
"""How many of something; at least 1."""
Flag = NewType("Flag", bool)
Apex = NewType("Apex", str)
NodeName = NewType("NodeName", str)
Host = NewType("Host", str)
SiteName = NewType("SiteName", str)
Endpoint = NewType("Endpoint", str)
"""A Twisted endpoint description."""

Durability = Literal["sync", "interval", "memory"]
"""
What must have happened before a QoS 1/2 message counts as taken: synced; written, and synced every
`sync_interval`; nothing, it is written later.
"""
Journaled = Literal["all", "qos12", "none"]
"""
Which messages a node keeps in its zone's journal: all; QoS 1 and 2; those that sessions still wait
for.
"""
WhenUnreachable = Literal["outbox", "hold"]
"""Where QoS 1/2 publishes to a zone that is away wait: on the disk, or unread at the client."""
WhenUnknown = Literal["refuse", "fresh"]
"""What a client gets whose session may exist where nobody can be asked now."""


@attrs.frozen(slots=True)
class Address:
    """
    Where to dial or to bind: a host name, IPv4 or IPv6 address (no brackets), and a port.

    `str` gives the form that `parse_address` reads and gRPC dials.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@attrs.frozen(slots=True)
class ReserveSize:
    """
    How much of a file system stays free: a `share` of it (0 to 1), or a `size` in bytes.

    One of the two is 0. `str` gives the form that the topology file has.
    """

    share: float = 0.0
    size: int = 0

    def __str__(self) -> str:
        return f"{self.size}B" if self.size else f"{self.share * 100:g}%"

    def of(self, total: int) -> int:
        """
        The bytes to keep free of a file system of `total` bytes.

        A size is cut to a quarter of `total`, so that a reserve that was meant for a large disk
        leaves most of a small one usable.
        """
        return min(self.size, total // 4) if self.size else int(total * self.share)


@attrs.frozen(slots=True, kw_only=True)
class RetentionLimits:
    """What a zone's journal keeps: records as old as `age`, within `size` bytes."""

    age: Timeout = Timeout(7 * DAY)
    size: Size = Size(10 * GIB)


@attrs.frozen(slots=True, kw_only=True)
class SessionBounds:
    """
    What one client session may have waiting while its client is slow or away.

    A message that waits costs its session nothing: `bytes` bounds what the journals keep for it. So
    `messages` is high: a site that was away for ten minutes at 1,000 messages a second gets all.
    """

    messages: Count = Count(1_000_000)
    bytes: Size = Size(1 * GIB)
    age: Timeout = Timeout(7 * DAY)


@attrs.frozen(slots=True, kw_only=True)
class RetainedLimits:
    """What a zone retains; a value for a further topic is delivered, and not retained."""

    messages: Count = Count(1_000_000)
    bytes: Size = Size(4 * GIB)


@attrs.frozen(slots=True, kw_only=True)
class Limits:
    """The bounds of one node; beyond them a peer is refused or a message dropped and counted."""

    connections: Count = Count(50_000)
    packet: Size = Size(16 * MIB)
    inflight: Count = Count(100)
    session_memory: Size = Size(8 * MIB)
    outbox: Size = Size(1 * GIB)
    links: Count = Count(1_000)
    cache: Count = Count(100_000)
    disk_free: ReserveSize = ReserveSize(share=0.05)
    connect_timeout: Timeout = Timeout(10.0)
    levels: Count = Count(200)
    subscriptions: Count = Count(10_000)
    sessions: Count = Count(1_000_000)
    retained: RetainedLimits = RetainedLimits()
    client_id: Count = Count(256)
    unauthenticated: Size = Size(64 * MIB)


@attrs.frozen(slots=True, kw_only=True)
class NodeConfig:
    """
    One document of a topology file, every rule that needs no other document checked.

    `zone` is None for a pure edge and "" for the root zone; `link` None means a free port on
    `grpc`'s host; `data` is absolute; `site` "" is the site of all nodes that name none; `source`
    is the file as it was named by the caller, and `lines` the line of each key in it.
    """

    node: NodeName
    zone: Apex | None = None
    parent: Address | None = None
    mqtt: tuple[Endpoint, ...]
    grpc: Address
    link: Address | None = None
    advertise: Host | None = None
    data: Path
    site: SiteName = SiteName("")
    durability: Durability = "sync"
    sync_interval: Timeout = Timeout(0.1)
    journal: Journaled = "all"
    retention: RetentionLimits = RetentionLimits()
    unreachable: WhenUnreachable = "outbox"
    roaming: WhenUnknown = "refuse"
    roaming_wait: Seconds = Seconds(3.0)
    will_after: Seconds = Seconds(10.0)
    suback_wait: Seconds = Seconds(2.0)
    session_limits: SessionBounds = SessionBounds()
    limits: Limits = Limits()
    ledger: Flag = Flag(False)
    source: Path
    lines: Mapping[str, int] = attrs.field(factory=dict, eq=False, repr=False)

    @property
    def dial_host(self) -> str:
        """The host that other nodes and clients are told to dial."""
        return self.advertise or self.grpc.host

    def error(self, key: str, value: object, problem: str, remedy: str) -> ConfigError:
        """An error at that key's line, for what shows only when the node starts, too."""
        line = self.lines.get(key)
        return ConfigError(self.source, key, value, remedy, problem=problem, line=line)


NOT_KEYS = frozenset({"source", "lines"})
"""Attributes of `NodeConfig` that do not stand in the file."""

# Annotations are text until asked for; the reader takes an attribute's type to find its hook.
for _class in (RetentionLimits, SessionBounds, RetainedLimits, Limits, NodeConfig):
    attrs.resolve_types(_class)
