"""What the topology file says, in the terms of the parts that go by it."""

from __future__ import annotations

from txbroker.config import NodeConfig
from txbroker.directory.directory import DirectorySettings as DirectorySettings
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.journal.store.retention import RetentionPolicy
from txbroker.mqtt.session.window import SessionLimits

HELD_IN_MEMORY = 64 * 1024 * 1024
"""Bytes of publishes that wait for owners in memory; then clients who brought them are not read."""

SMALL_SEGMENT = 1024 * 1024
LARGE_SEGMENT = 64 * 1024 * 1024
"""Bytes of a journal's segment: a sixteenth of what is kept, within these bounds."""


def segment_bytes(config: NodeConfig) -> int:
    """How large a file of a journal gets, so that little more is kept than has to be."""
    return min(max(config.retention.size // 16, SMALL_SEGMENT), LARGE_SEGMENT)


def edge_limits(config: NodeConfig) -> EdgeLimits:
    """The bounds of the edge and its sessions."""
    return EdgeLimits(
        session=SessionLimits(
            inflight=config.limits.inflight,
            memory=config.limits.session_memory,
            messages=config.session_limits.messages,
            size=config.session_limits.bytes,
        ),
        session_age=config.session_limits.age,
        held=HELD_IN_MEMORY,
        outbox=config.limits.outbox,
        holds=config.unreachable == "hold",
        cache=config.limits.cache,
        sessions=config.limits.sessions,
        suback_wait=config.suback_wait,
    )


def directory_settings(config: NodeConfig) -> DirectorySettings:
    """How long the client directory waits for others, and what it does without them."""
    return DirectorySettings(
        roaming_wait=config.roaming_wait,
        is_fresh=config.roaming == "fresh",
        will_after=config.will_after,
        session_age=config.session_limits.age,
    )


def policy(config: NodeConfig) -> RetentionPolicy:
    """What is kept of journals."""
    return RetentionPolicy(
        age=config.retention.age,
        size=config.retention.size,
        session_age=config.session_limits.age,
        session_size=config.session_limits.bytes,
        keeps_history=config.journal != "none",
    )
