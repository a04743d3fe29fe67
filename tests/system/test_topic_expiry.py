"""Intervals by topic (`expiry` in the topology): for messages of anyone, on every node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import wire, wire5
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import MESSAGE_EXPIRY

RULES = [{"filter": "a/+/motion", "after": "1s"}, {"filter": "a/+/+", "after": "1h"}]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_is_kept_in_a_burst(tmp_path: Path, qos: int) -> None:
    """Of topics with and without an interval, from clients of both levels at the owner."""
    document = topology("solo", zone="", expiry=[{"filter": "b/#", "after": "1h"}])
    with (
        NodeProcess(tmp_path, document) as node,
        RawClient5(node.mqtt) as sub,
        RawClient(node.mqtt) as older,
        RawClient5(node.mqtt) as newer,
    ):
        sub.connect("sub")
        sub.subscribe(("#", 2))
        older.connect("older")
        newer.connect("newer")
        topics = [f"{'aabb'[n % 4]}/{n}" for n in range(200)]
        senders: list[tuple[RawClient | RawClient5, Callable[..., bytes]]]
        senders = [(older, wire.publish), (newer, wire5.publish)]
        for pub, publish in senders:
            packets = [
                publish(topic, b"1", qos=qos, packet_id=n if qos else 0)
                for n, topic in enumerate(topics, 1)
            ]
            pub.send(b"".join(packets))
            found = sub.take(len(topics))
            assert topics == [message.topic for message in found]
            intervals = [dict(message.properties).get(MESSAGE_EXPIRY) for message in found]
            assert [None if topic[0] == "a" else 3600 for topic in topics] == intervals


def test_messages_of_anyone_expire(tmp_path: Path) -> None:
    """Of a client of 3.1.1 at another node: live, retained, and for a session that is away."""
    with NodeProcess(tmp_path, topology("root", zone="")) as root:
        document = topology("a", zone="a", parent=root.grpc, expiry=RULES)
        with NodeProcess(tmp_path, document) as child:
            child.wait_event("join.granted", 30.0)
            with RawClient5(root.mqtt) as sub, RawClient(root.mqtt) as pub:
                sub.connect("sub", expiry=600)
                sub.subscribe(("a/#", 1))
                pub.connect("pub")
                for qos in (0, 1):
                    pub.publish("a/hall/light", b"0", qos=qos)
                    pub.publish("a/light", b"0", qos=qos)
                    for interval in (3600, None):
                        (found,) = sub.take(1)
                        assert dict(found.properties).get(MESSAGE_EXPIRY) == interval, found
                sub.disconnect()
                pub.publish("a/hall/motion", b"1", qos=1, retain=True)
                pub.publish("a/hall/light", b"1", qos=1, retain=True)
                time.sleep(3.0)  # each of two nodes may hold it for a second more
                with RawClient5(root.mqtt) as again, RawClient(child.mqtt) as older:
                    again.connect("sub", clean=False)
                    (found,) = again.take(1)
                    assert "a/hall/light" == found.topic
                    left = dict(found.properties)[MESSAGE_EXPIRY]
                    assert isinstance(left, int) and 3000 < left <= 3600
                    again.ping()
                    older.connect("older")
                    older.subscribe("a/#")
                    assert "a/hall/light" == older.expect_publish().topic
                    older.ping()
