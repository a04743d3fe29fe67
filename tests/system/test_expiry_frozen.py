"""
Messages that expire while a node stands still (MQTT 5.0, section 3.3.2.3.3).

A message may come a second later than its interval for each node that held it, and never too early.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.harness import unique
from tests.support import wire5
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import MESSAGE_EXPIRY, Publish, Will, first

Tree = dict[str, NodeProcess]

SHORT, LONG = 1, 100
"""Intervals in seconds: one passes while a node stands still, the other does not."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """The owner of all topics, and two edges."""
    folder: Path = tmp_path_factory.mktemp("frozen")
    with NodeProcess(folder, topology("owner", zone="")) as owner:
        keys = {"parent": owner.grpc}
        with (
            NodeProcess(folder, topology("near", **keys)) as near,
            NodeProcess(folder, topology("far", **keys)) as far,
        ):
            for edge in (near, far):
                edge.wait_event("join.granted", 30.0)
            yield {"owner": owner, "near": near, "far": far}


def interval(message: Publish) -> int:
    """What is left of a message's interval."""
    left = first(message.properties, MESSAGE_EXPIRY)
    assert isinstance(left, int)
    return left


@contextmanager
def standing_still(node: NodeProcess, seconds: float) -> Iterator[None]:
    """The node stands still during the context, and goes on this long after it."""
    node.pause()
    try:
        yield
        time.sleep(seconds)  # the time itself is what is tested
    finally:
        node.resume()


@contextmanager
def subscribed(tree: Tree, topic: str, name: str, qos: int) -> Iterator[tuple[RawClient5, ...]]:
    """A client at `far` with this filter, which has got a message of one at `near`."""
    with RawClient5(tree["far"].mqtt) as sub, RawClient5(tree["near"].mqtt) as pub:
        sub.connect(unique(), expiry=60)
        sub.subscribe((name, qos))
        pub.connect(unique(), expiry=60)
        pub.publish(f"{topic}/before", b"0", qos=1)
        sub.acknowledge(sub.expect_publish(f"{topic}/before"))
        yield sub, pub


def send_both(pub: RawClient5, topic: str, *, qos: int, retain: bool = False) -> float:
    """Publish a message of each interval, and wait for no acknowledgement; the time of it."""
    began = time.monotonic()
    for number, (name, expiry) in enumerate((("short", SHORT), ("long", LONG)), 100):
        properties: list[tuple[int, wire5.Value]] = [(MESSAGE_EXPIRY, expiry)]
        packet = wire5.publish(
            f"{topic}/{name}",
            b"1",
            qos=qos,
            retain=retain,
            packet_id=number,
            properties=properties,
        )
        pub.send(packet)
    return began


def by_name(messages: Iterable[Publish]) -> dict[str, Publish]:
    """The messages by the last level of their topics."""
    return {message.topic.rpartition("/")[2]: message for message in messages}


def taken_until(sub: RawClient5, marker: str) -> dict[str, Publish]:
    """The messages that come before the marker, by name."""
    found = []
    while (message := sub.expect_publish()).topic != marker:
        found.append(message)
        sub.acknowledge(message)
    return by_name(found)


def expect_long_alone(found: dict[str, Publish], began: float) -> None:
    """Only the long interval has not passed; it says what is left."""
    away = time.monotonic() - began
    assert ["long"] == list(found), found
    assert LONG - away - 3 <= interval(found["long"]) <= LONG - away + 3


@pytest.mark.parametrize("seconds", [4.0, 7.0])
@pytest.mark.parametrize("frozen", ["owner", "far"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_node_stands_still(tree: Tree, frozen: str, seconds: float, qos: int) -> None:
    """What passed meanwhile does not come; the rest comes with what is left."""
    topic = f"t/{unique()}"
    node = tree[frozen]
    with subscribed(tree, topic, f"{topic}/#", qos) as (sub, pub):
        with standing_still(node, seconds):
            began = send_both(pub, topic, qos=qos)
            time.sleep(0.3)
        marker = f"{topic}/marker"
        pub.publish(marker, b"2", qos=1)
        found = taken_until(sub, marker)
        if qos or found:
            expect_long_alone(found, began)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_of_an_owner_that_stands_still(tree: Tree, qos: int) -> None:
    """They reached it before, while, or after; who subscribes gets what has not passed."""
    topic = f"t/{unique()}"
    with RawClient5(tree["far"].mqtt) as sub, RawClient5(tree["near"].mqtt) as pub:
        sub.connect(unique())
        pub.connect(unique(), expiry=60)
        before = time.monotonic()
        for name, expiry in (("brief", SHORT), ("lasts", LONG)):
            pub.publish(
                f"{topic}/{name}", b"1", qos=1, retain=True, properties=[(MESSAGE_EXPIRY, expiry)]
            )
        with standing_still(tree["owner"], 4.0):
            send_both(pub, topic, qos=qos, retain=True)
        pub.publish(f"{topic}/known", b"1", qos=1)
        away = time.monotonic() - before
        sub.subscribe((f"{topic}/#", qos))
        pub.publish(f"{topic}/marker", b"2", qos=1)
        found = taken_until(sub, f"{topic}/marker")

        assert {"lasts", "long"} >= set(found) >= ({"lasts", "long"} if qos else {"lasts"}), found
        for message in found.values():
            assert message.retain
            assert LONG - away - 3 <= interval(message) <= LONG - away + 3


@pytest.mark.parametrize("frozen", ["owner", "far"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_group_behind_a_node_that_stands_still(tree: Tree, frozen: str, qos: int) -> None:
    """Its member is at the node `far`; a group has no order, so the marker waits for its turn."""
    topic = f"t/{unique()}"
    with subscribed(tree, topic, f"$share/{unique()}/{topic}/#", qos) as (sub, pub):
        with standing_still(tree[frozen], 4.0):
            began = send_both(pub, topic, qos=qos)
        if qos:
            expect_long_alone(by_name(sub.take(1)), began)
        pub.publish(f"{topic}/marker", b"2", qos=1)
        assert "short" not in taken_until(sub, f"{topic}/marker")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_that_moves_from_a_node_that_stood_still(tree: Tree, qos: int) -> None:
    """What waited there has aged where the session goes on."""
    topic, client_id = f"t/{unique()}", unique()
    with RawClient5(tree["far"].mqtt) as sub, RawClient5(tree["near"].mqtt) as pub:
        sub.connect(client_id, expiry=600)
        sub.subscribe((f"{topic}/#", qos))
        sub.disconnect()
        pub.connect(unique(), expiry=60)
        pub.publish(f"{topic}/before", b"0", qos=1)
        with standing_still(tree["far"], 4.0):
            began = send_both(pub, topic, qos=qos)
        with RawClient5(tree["near"].mqtt, timeout=30.0) as back:
            assert back.connect(client_id, clean=False, expiry=600).present
            pub.publish(f"{topic}/marker", b"2", qos=1)
            found = taken_until(back, f"{topic}/marker")
            found.pop("before")
            expect_long_alone(found, began)


@pytest.mark.parametrize("frozen", ["owner", "near"])
@pytest.mark.parametrize("qos", [1, 2])
def test_wills_beside_a_node_that_stands_still(tree: Tree, frozen: str, qos: int) -> None:
    """
    A will ages from its publication on: while its owner stands still, and not while its own node
    does, which publishes the will when it goes on.
    """
    topic = f"t/{unique()}"
    with RawClient5(tree["far"].mqtt, timeout=30.0) as sub, RawClient5(tree["near"].mqtt) as pub:
        sub.connect(unique())
        sub.subscribe((f"{topic}/#", qos))
        pub.connect(unique())
        mortals = [RawClient5(tree["near"].mqtt) for _ in range(2)]
        for mortal, name, expiry in zip(mortals, ("short", "long"), (SHORT, LONG), strict=True):
            expires: list[tuple[int, wire5.Value]] = [(MESSAGE_EXPIRY, expiry)]
            will = Will(topic=f"{topic}/{name}", payload=b"1", qos=qos, properties=expires)
            mortal.connect(unique(), will=will)
        with standing_still(tree[frozen], 4.0):
            began = time.monotonic()
            for mortal in mortals:
                mortal.close()
        if frozen == "owner":
            pub.publish(f"{topic}/marker", b"2", qos=1)
            expect_long_alone(taken_until(sub, f"{topic}/marker"), began)
        else:
            found = by_name(sub.take(2))
            assert {"short", "long"} == set(found)
            assert LONG - 2 <= interval(found["long"]) <= LONG
