"""
That `sync` syncs, seen from outside: a real node's system calls under strace.

An acknowledgement leaves after an fdatasync that began after the message was written to the
journal's file, and returned without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.strace import Call, TracedNode
from tests.support.wire import PUBACK, PUBREC

from .commands import wait_until

SINGLY = 5
AT_ONCE = 40
ANSWERS = {1: PUBACK, 2: PUBREC}
WRITES = ("pwritev", "pwritev2", "pwrite64", "write", "writev")
SENDS = ("sendto", "sendmsg", "write", "writev")


def payload(packet_id: int) -> bytes:
    return b"payload-%05d." % packet_id


def publish_all(node: TracedNode, qos: int, topic: str = "t") -> None:
    """Some one by one, then many with one write, so that they share batches and syncs."""
    with RawClient(node.mqtt) as client:
        client.connect("publisher")
        packets = {
            packet_id: wire.publish(topic, payload(packet_id), qos=qos, packet_id=packet_id)
            for packet_id in range(1, SINGLY + AT_ONCE + 1)
        }
        for packet_id in range(1, SINGLY + 1):
            client.send(packets[packet_id])
            client.wait_for(ANSWERS[qos], packet_id)
        client.send(*(packets[packet_id] for packet_id in range(SINGLY + 1, len(packets) + 1)))
        for packet_id in range(SINGLY + 1, len(packets) + 1):
            client.wait_for(ANSWERS[qos], packet_id)
        client.disconnect()


def trace(directory: Path, qos: int, **keys: object) -> list[Call]:
    """The calls of a node to which such messages were published."""
    node = TracedNode(directory, topology("n", zone="", **keys))
    try:
        node.start(timeout=60.0)
        publish_all(node, qos)
        node.terminate(30.0)
    finally:
        node.close()
    wait_until(node.is_traced, what="the end of the trace")
    return node.calls()


def trace_outbox(directory: Path, qos: int) -> list[Call]:
    """The calls of a node to which such messages were published for a zone that is away."""
    node = TracedNode(directory, topology("n", zone=""))
    away = NodeProcess(directory, topology("away", zone="away", parent=node.grpc))
    try:
        node.start(timeout=60.0)
        away.start()
        away.wait_event("join.granted", 30.0)
        away.kill()
        publish_all(node, qos, "away/t")
        node.terminate(30.0)
    finally:
        away.close()
        node.close()
    wait_until(node.is_traced, what="the end of the trace")
    return node.calls()


def write_of(calls: list[Call], packet_id: int, folder: str) -> Call:
    """The call that wrote the message to a file of the folder."""
    return next(
        call
        for call in calls
        if call.name in WRITES and folder in call.path and payload(packet_id) in call.arguments
    )


def unsynced(calls: list[Call], qos: int, folder: str = "/journal/") -> Iterator[int]:
    """The packet ids whose answer did not wait for a sync of what was written."""
    syncs = [c for c in calls if c.name in ("fdatasync", "fsync") and not c.result]
    sends = [c for c in calls if c.name in SENDS and "socket:" in c.path.lower()]
    for packet_id in range(1, SINGLY + AT_ONCE + 1):
        answer = wire.ack(ANSWERS[qos], packet_id)
        sent = next(call for call in sends if answer in call.arguments)
        written = write_of(calls, packet_id, folder)
        if not any(
            written.path == sync.path and written.ended < sync.began and sync.ended < sent.began
            for sync in syncs
        ):
            yield packet_id


@pytest.mark.parametrize("qos", [1, 2])
def test_answer_leaves_after_the_sync(tmp_path: Path, qos: int) -> None:
    """PUBACK and PUBREC, with the default durability."""
    assert [] == list(unsynced(trace(tmp_path, qos), qos))


@pytest.mark.parametrize("qos", [1, 2])
def test_answer_leaves_after_the_sync_of_the_outbox(tmp_path: Path, qos: int) -> None:
    """The owner is away: its edge acknowledges what is durable here."""
    assert [] == list(unsynced(trace_outbox(tmp_path, qos), qos, "/outbox/"))


def test_nothing_waits_for_the_disk_in_memory(tmp_path: Path) -> None:
    """With `durability: memory` it is so for not a single one, though all are written."""
    calls = trace(tmp_path, 1, durability="memory")

    assert SINGLY + AT_ONCE == len(list(unsynced(calls, 1)))
