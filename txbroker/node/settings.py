"""Converts the topology file's values to the settings of a node's parts."""

from __future__ import annotations

from txbroker.config import NodeConfig
from txbroker.directory.directory import DirectorySettings as DirectorySettings
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.journal.store.retention import RetentionPolicy
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.transport.connection_limits import ConnectionLimits

HELD_IN_MEMORY = 64 * 1024 * 1024
"""Bytes of publishes that wait for owners in memory before their clients are not read."""

SMALL_SEGMENT = 1024 * 1024
LARGE_SEGMENT = 64 * 1024 * 1024
"""Bounds of a journal segment in bytes; within them, a sixteenth of the retention size."""


def segment_bytes(config: NodeConfig) -> int:
    """Return the size of a journal's files, small enough that retention overshoots little."""
    return min(max(config.retention.size // 16, SMALL_SEGMENT), LARGE_SEGMENT)


def connection_limits(config: NodeConfig) -> ConnectionLimits:
    """Return the limits of client connections."""
    limits = config.limits
    return ConnectionLimits(
        packet=limits.packet,
        connections=limits.connections,
        connect_timeout=limits.connect_timeout,
        client_id=limits.client_id,
        subscriptions=limits.subscriptions,
        receive_maximum=limits.receive_maximum,
        topic_aliases=limits.topic_aliases,
        keepalive_max=int(config.keepalive_max),
        checks_utf8=config.check_utf8,
    )


def edge_limits(config: NodeConfig) -> EdgeLimits:
    """Return the limits of the edge and its sessions."""
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
    """Return the directory's waiting times, and its behaviour when other nodes are away."""
    return DirectorySettings(
        roaming_wait=config.roaming_wait,
        is_fresh=config.roaming == "fresh",
        will_after=config.will_after,
        session_age=config.session_limits.age,
    )


def policy(config: NodeConfig) -> RetentionPolicy:
    """Return the retention policy of journals."""
    return RetentionPolicy(
        age=config.retention.age,
        size=config.retention.size,
        session_age=config.session_limits.age,
        session_size=config.session_limits.bytes,
        keeps_history=config.journal != "none",
    )
