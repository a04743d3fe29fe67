"""
`txbroker retire`: the zone goes back to the parent and the node stops; started again it takes it.
"""

from __future__ import annotations

import socket
import threading

import pytest

from tests.support.nodes import parse_address
from tests.support.rawclient import RawClient
from tests.support.wire import Publish

from .commands import as_json, failure, output, wait_until
from .conftest import House


def zones(house: House) -> dict[str, str]:
    """Who serves what, by the whole tree."""
    return {row["zone"]: row["node"] for row in as_json("tree", house.root.grpc)}


WHOLE = {"": "root", "a": "a", "a/b": "ab", "b": "b"}


def retained(client: RawClient, topic_filter: str) -> list[Publish]:
    """What a new subscription gets first, up to the topic `zz` below the same apex."""
    client.subscribe((topic_filter, 1))
    found = client.take_until(lambda message: message.topic.endswith("/zz"))
    client.unsubscribe(topic_filter)
    return found


def keep(house: House, apex: str, *values: bytes) -> None:
    """Retained messages in a zone; they end with one that tests wait for."""
    with RawClient(house.b.mqtt) as client:
        client.connect("keep")
        for number, value in enumerate(values):
            client.publish(f"{apex}/kept/{number}", value, qos=1, retain=True)
        client.publish(f"{apex}/kept/zz", b"end", qos=1, retain=True)


def come_back(house: House) -> None:
    """Start the retired node again once its process has ended; it has its zone in a whole tree."""
    assert 0 == house.a.wait()
    house.a.start()
    house.a.wait_event("join.granted", zone="a")
    wait_until(lambda: zones(house) == WHOLE, what="the zone is back")


def test_the_parent_serves_the_zone_afterwards(house: House) -> None:
    """With its retained messages, at every node; then the node has it again, changes included."""
    keep(house, "a", b"one", b"two")
    epoch = as_json("tree", house.root.grpc)[1]["epoch"]

    said = output("retire", house.a.grpc)

    assert "zone a is back with its parent; the node is stopping\n" == said
    host, port = parse_address(house.a.grpc)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), 1.0)
    assert {"": "root", "a/b": "ab", "b": "b"} == zones(house)
    assert "root" == as_json("resolve", house.edge.grpc, "a/kept/0")["owners"][0]["node"]
    for node in (house.root, house.b, house.edge):
        with RawClient(node.mqtt) as client:
            client.connect("late")
            assert [b"one", b"two"] == [m.payload for m in retained(client, "a/kept/+")]
    with RawClient(house.edge.mqtt) as client:
        client.connect("changes")
        client.publish("a/kept/0", b"", qos=1, retain=True)
        client.publish("a/kept/1", b"three", qos=2, retain=True)

    come_back(house)

    assert as_json("tree", house.root.grpc)[1]["epoch"] > epoch
    with RawClient(house.a.mqtt) as client:
        client.connect("home")
        assert [b"three"] == [m.payload for m in retained(client, "a/kept/+")]


def test_what_is_below_goes_to_the_parent_and_comes_back(house: House) -> None:
    """The zone a/b is served all the time; only its parent changes."""

    def parent() -> str:
        return str({row["zone"]: row for row in as_json("tree", house.root.grpc)}["a/b"]["parent"])

    with RawClient(house.b.mqtt) as client:
        client.connect("steady")
        client.subscribe(("a/b/#", 1))
        client.publish("a/b/x", b"before", qos=1)
        output("retire", house.a.grpc)
        assert "root" == parent()
        client.publish("a/b/x", b"between", qos=1)
        come_back(house)
        assert "a" == parent()
        client.publish("a/b/x", b"after", qos=1)
        assert [b"before", b"between", b"after"] == [m.payload for m in client.take(3)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_subscriber_sees_no_gap(house: House, qos: int) -> None:
    """
    Publishes go on at another node while the zone goes back to the parent and away again: each is
    acknowledged, and arrives once and in order at the parent.
    """
    stop = threading.Event()
    sent: list[bytes] = []

    def publish() -> None:
        with RawClient(house.b.mqtt, timeout=30.0) as client:
            client.connect("gapless")
            # Not faster than this: the subscriber reads at the end, and its queue has a limit.
            while not stop.wait(0.003):
                payload = b"%d" % len(sent)
                client.publish("a/gap", payload, qos=qos)
                sent.append(payload)

    with RawClient(house.root.mqtt, timeout=30.0) as sub:
        sub.connect("watches")
        sub.subscribe(("a/gap", qos))
        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            wait_until(lambda: len(sent) > 20)
            output("retire", house.a.grpc)
            during = len(sent)
            wait_until(lambda: len(sent) > during + 20)
            come_back(house)
            after = len(sent)
            wait_until(lambda: len(sent) > after + 20)
        finally:
            stop.set()
            publisher.join(60.0)
        assert sent == [message.payload for message in sub.take(len(sent))]
        sub.ping()


def test_without_its_parent_nothing_changes(house: House) -> None:
    """One line, status 1; the node goes on serving its zone."""
    house.root.terminate()
    try:
        said = failure("retire", house.a.grpc)
        assert f"Error: {house.a.grpc}: parent {house.root.grpc} cannot be reached: " in said
        with RawClient(house.a.mqtt) as client:
            client.connect("goes on")
            client.publish("a/on", b"p", qos=2)
        assert ["a", "a/b"] == [row["zone"] for row in as_json("tree", house.a.grpc)]
    finally:
        house.root.start()
    wait_until(lambda: zones(house) == WHOLE, what="a whole tree")


def test_a_frozen_parent_is_no_parent(house: House) -> None:
    """The same where nothing answers."""
    house.root.pause()
    try:
        said = failure("retire", house.a.grpc)
    finally:
        house.root.resume()
    assert "cannot be reached" in said
    wait_until(lambda: zones(house) == WHOLE, what="a whole tree")


def test_what_cannot_retire(house: House) -> None:
    """The root: one line why, status 1, and it goes on."""
    assert "the root zone has no parent" in failure("retire", house.root.grpc)
    assert WHOLE == zones(house)


def test_nobody_there() -> None:
    """One line, status 1."""
    assert "Error: 127.0.0.1:1 cannot be reached; " in failure("retire", "127.0.0.1:1")
