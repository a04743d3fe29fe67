"""
The values of a topology file: one attrs class for each mapping, with the defaults of its keys.

`value_hooks` reads each value from YAML's.
"""

from __future__ import annotations

import os
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
"""A number of items, at least 1."""
TopicFilter = NewType("TopicFilter", str)
Interval = NewType("Interval", int)
"""Whole seconds that fit in a property of MQTT 5.0, at least 1."""
Flag = NewType("Flag", bool)
Apex = NewType("Apex", str)
NodeName = NewType("NodeName", str)
Host = NewType("Host", str)
SiteName = NewType("SiteName", str)
Endpoint = NewType("Endpoint", str)
"""A Twisted endpoint description."""

Durability = Literal["sync", "interval", "memory"]
"""
The condition under which a QoS 1 or 2 message counts as accepted.

`sync`: the message is synced. `interval`: it is written, with a sync every `sync_interval`.
`memory`: none, and it is written later.
"""
Journaled = Literal["all", "qos12", "none"]
"""
The messages that a node appends to its zone's journal.

`all`: all. `qos12`: those of QoS 1 and 2. `none`: those for which sessions still wait.
"""
WhenUnreachable = Literal["outbox", "hold"]
"""
The place where QoS 1 and 2 publishes wait for an absent owner.

`outbox`: on the disk. `hold`: unread at the client.
"""
WhenUnknown = Literal["refuse", "fresh"]
"""
The answer to a client whose session may exist at nodes that do not answer now.

`refuse`: CONNACK with an error. `fresh`: a new session, to be merged later.
"""


@attrs.frozen(slots=True)
class Address:
    """
    An address to dial or to bind: a host name, IPv4 or IPv6 address (no brackets), and a port.

    `str` returns the form that `parse_address` reads and gRPC dials.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@attrs.frozen(slots=True)
class ReserveSize:
    """
    The part of a file system that stays free: a `share` of it (0 to 1), or a `size` in bytes.

    Either `share` or `size` is 0. `str` returns the form of the topology file.
    """

    share: float = 0.0
    size: int = 0

    def __str__(self) -> str:
        return f"{self.size}B" if self.size else f"{self.share * 100:g}%"

    def of(self, total: int) -> int:
        """
        Return the bytes that stay free of a file system of `total` bytes.

        A size is cut to a quarter of `total`. So a reserve for a large disk leaves most of a small
        one usable.
        """
        return min(self.size, total // 4) if self.size else int(total * self.share)


@attrs.frozen(slots=True, kw_only=True)
class RetentionLimits:
    """The bounds of a zone's journal: records up to `age` seconds old, within `size` bytes."""

    age: Timeout = Timeout(7 * DAY)
    size: Size = Size(10 * GIB)


@attrs.frozen(slots=True, kw_only=True)
class SessionBounds:
    """
    The bounds of one client session's waiting messages while its client is slow or away.

    A waiting message costs its session nothing: `bytes` bounds the journals' retention for the
    session. So `messages` is high: a site that was away for ten minutes at 1,000 messages a second
    gets all.
    """

    messages: Count = Count(1_000_000)
    bytes: Size = Size(1 * GIB)
    age: Timeout = Timeout(7 * DAY)


@attrs.frozen(slots=True, kw_only=True)
class RetainedLimits:
    """
    The bounds of a zone's retained messages; beyond them, a new topic is delivered, and not
    retained.
    """

    messages: Count = Count(1_000_000)
    bytes: Size = Size(4 * GIB)


@attrs.frozen(slots=True, kw_only=True)
class Limits:
    """The bounds of one node; beyond them a peer is refused, or a message dropped and counted."""

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
    receive_maximum: Count = Count(65_535)
    topic_aliases: Count = Count(100)


@attrs.frozen(slots=True, kw_only=True)
class ExpiryRule:
    """Messages of the zone to topics that match `filter` expire `after` so many seconds."""

    filter: TopicFilter
    after: Interval

    def __str__(self) -> str:
        return f"{self.filter}: {self.after}s"


@attrs.frozen(slots=True, kw_only=True)
class NodeConfig:
    """
    A document of a topology file, with every rule checked that needs no other document.

    - `zone`: None for a pure edge, "" for the root zone.
    - `link`: None for a free port on `grpc`'s host.
    - `data`: an absolute path.
    - `site`: "" is the site of all nodes that name none.
    - `source`: the file as the caller named it; `lines`: the line of each key in it.
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
    expiry: tuple[ExpiryRule, ...] = ()
    hold_first: tuple[TopicFilter, ...] = ()
    unreachable: WhenUnreachable = "outbox"
    roaming: WhenUnknown = "refuse"
    roaming_wait: Seconds = Seconds(3.0)
    will_after: Seconds = Seconds(10.0)
    suback_wait: Seconds = Seconds(2.0)
    keepalive_max: Seconds = Seconds(0.0)
    check_utf8: Flag = Flag(False)
    session_limits: SessionBounds = SessionBounds()
    limits: Limits = Limits()
    ledger: Flag = Flag(False)
    source: Path
    lines: Mapping[str, int] = attrs.field(factory=dict, eq=False, repr=False)

    @property
    def dial_host(self) -> str:
        """Return the host that other nodes and clients dial."""
        return self.advertise or self.grpc.host

    @property
    def data_place(self) -> Path:
        """Return the path of `data` without symbolic links and `..`, to compare with others."""
        return Path(os.path.realpath(self.data))

    def error(self, key: str, value: object, problem: str, remedy: str) -> ConfigError:
        """
        Return an error at that key's line, also for mistakes that only the node's start can show.
        """
        line = self.lines.get(key)
        return ConfigError(self.source, key, value, remedy, problem=problem, line=line)


NOT_KEYS = frozenset({"source", "lines"})
"""Attributes of `NodeConfig` that are no keys of the file."""

# Annotations are text until resolved; the reader needs an attribute's type to find its hook.
for _class in (RetentionLimits, SessionBounds, RetainedLimits, Limits, ExpiryRule, NodeConfig):
    attrs.resolve_types(_class)
