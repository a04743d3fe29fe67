"""
Sessions that a copy has and that went on at another node since: the copy's are out of date.

The session counts that its client has used last. What it has got there comes nowhere again.
"""

from __future__ import annotations

import time

import pytest

from tests.support.nodes import NodeProcess
from tests.support.rawclient import ConnectionEnded, RawClient
from tests.system.commands import wait_until

from .test_restores import House, house, publish, receive_message, subscribe, take

__all__ = ["house"]

QUIET = 1.5
"""Seconds in which all would have come that waits."""

PATIENCE = 30.0

pytestmark = pytest.mark.timeout(150)


def publish_everywhere(house: House, prefix: str) -> list[bytes]:
    topics = {"x/y": house.root, "a/x": house.a, "b/x": house.b}
    return [
        one for topic, node in topics.items() for one in publish(node, topic, prefix + topic, 3)
    ]


def take_all(node: NodeProcess, client_id: str) -> list[bytes]:
    """What comes while the client waits; it tries again where it is closed, or not let in."""
    found: list[bytes] = []
    until = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < until
        with RawClient(node.mqtt, timeout=20.0) as client:
            try:
                assert client.connect(client_id, clean=False)
                while client.has_input(QUIET):
                    found += receive_message(client)
                client.disconnect()
            except ConnectionEnded:
                continue
        return found


@pytest.mark.parametrize("name", ["root", "a"])
def test_session_that_moved_since_the_copy_gets_nothing_again(house: House, name: str) -> None:
    """Its client is back at once, where the session was when the copy was made."""
    node: NodeProcess = getattr(house, name)
    subscribe(node, "reader", "#")
    copy = house.backup(node)
    first = publish_everywhere(house, "first")
    assert sorted(first) == sorted(take(node, "reader", *first))
    second = publish_everywhere(house, "second")
    assert sorted(second) == sorted(take(house.b, "reader", *second))

    house.restore(node, copy)
    got = take_all(node, "reader")
    wait_until(house.is_whole, 40.0, what="all nodes joined")
    third = publish_everywhere(house, "third")
    got += take_all(node, "reader")

    assert sorted(third) == sorted(got)
