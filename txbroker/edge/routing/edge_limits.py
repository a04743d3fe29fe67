"""The limits of an edge."""

from __future__ import annotations

import attrs

from txbroker.mqtt.session.window import SessionLimits


@attrs.frozen(kw_only=True)
class EdgeLimits:
    """
    Limits of an edge; sizes in bytes, times in seconds.

    `held` limits publishes in memory, `outbox` those on the disk. `holds`: publishes wait in
    memory, and no outbox is used.
    """

    session: SessionLimits = SessionLimits()
    held: int = 64 * 1024 * 1024
    outbox: int = 1024 * 1024 * 1024
    holds: bool = False
    cache: int = 100_000
    sessions: int = 1_000_000
    suback_wait: float = 2.0
    session_age: float = 7 * 86_400.0
