"""What very many retained messages cost a node's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import wait_until
from .strangers import resident

FIRST, COUNT = 100_000, 400_000
AT_ONCE = 1_000
MOST = 250
"""Bytes that a retained message may cost beside its topic and payload."""


def topic_of(number: int) -> str:
    return f"house/{number // 1000}/room{number % 1000}/temperature"


def payload_of(number: int) -> bytes:
    return b"%016d" % number


@pytest.mark.timeout(600)
def test_retained_messages_are_small(tmp_path: Path) -> None:
    """While they come, and after a start; all are there."""
    document = topology("n", zone="") | {"limits": {"cache": 1_000}}
    each = MOST + len(topic_of(COUNT - 1)) + len(payload_of(0))
    with NodeProcess(tmp_path, document) as node:
        empty = resident(node)
        publish(node, 0, FIRST)
        before = resident(node)  # with what a node that has worked needs anyway
        publish(node, FIRST, COUNT)
        more = COUNT - FIRST
        # What a slow disk has still to take is there, too, until it has.
        small = "they are small"
        wait_until(lambda: (resident(node) - before) / more < each, timeout=120.0, what=small)

        node.terminate()
        node.start()
        wait_until(lambda: (resident(node) - empty) / COUNT < each, what=small)
        with RawClient(node.mqtt) as client:
            client.connect("s")
            client.subscribe("house/7/+/temperature")
            found = {client.expect_publish().topic for _ in range(1_000)}
        assert {topic_of(number) for number in range(7_000, 8_000)} == found


def publish(node: NodeProcess, first: int, end: int) -> None:
    """Retain those from the first on."""
    with RawClient(node.mqtt) as client:
        client.connect("p")
        for start in range(first, end, AT_ONCE):
            publishes = [
                wire.publish(topic_of(number), payload_of(number), qos=0, retain=True)
                for number in range(start, start + AT_ONCE)
            ]
            client.send(b"".join(publishes))
            client.ping()


def test_long_retained_messages_are_on_the_disk(tmp_path: Path) -> None:
    """While they come, and after a start from what was killed; all are there, and the last ones."""
    count, size = 600, 250_000

    def payload(number: int, turn: int) -> bytes:
        return b"%d %d " % (number, turn) + bytes(size)

    with NodeProcess(tmp_path, topology("n", zone="")) as node:
        with RawClient(node.mqtt, timeout=60) as client:
            client.connect("p")
            for turn in range(2):
                for number in range(count):
                    client.publish(f"long/{number}", payload(number, turn), qos=1, retain=True)
        wait_until(lambda: resident(node) < count * size, what="they are on the disk")
        node.kill()
        node.start()
        wait_until(lambda: resident(node) < count * size, what="they are on the disk")
        with RawClient(node.mqtt, timeout=60) as client:
            client.connect("s")
            client.subscribe(("long/+", 0))
            found = {one.topic: one.payload for one in client.take(count)}
        assert {f"long/{number}": payload(number, 1) for number in range(count)} == found
