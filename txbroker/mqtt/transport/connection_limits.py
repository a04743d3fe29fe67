"""CORE: the limits of a node's client connections."""

from __future__ import annotations

import attrs


@attrs.frozen
class ConnectionLimits:
    """
    The limits that new packets and new connections get.

    `packet` and `client_id` are bytes, `connect_timeout` seconds. `keepalive_max`: the longest
    keep-alive of level 5 in seconds, 0 for any. `checks_utf8`: a payload must be UTF-8 if its
    publish says so.
    """

    packet: int
    connections: int
    connect_timeout: float
    client_id: int = 256
    subscriptions: int = 10_000
    receive_maximum: int = 65_535
    topic_aliases: int = 100
    keepalive_max: int = 0
    checks_utf8: bool = False
