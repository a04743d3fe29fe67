"""
Wills: stored with the connection, published when it ends otherwise than by DISCONNECT (3.1.2.5-7).
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.rawclient import RawClient
from tests.support.wire import Will

from .harness import Bench, unique
from .statements import statement


def end_by_drop(client: RawClient) -> None:
    """The client's side of the connection ends."""
    client.drop()


def end_by_reset(client: RawClient) -> None:
    """A TCP reset."""
    client.reset()


def end_by_violation(client: RawClient) -> None:
    """The server closes because of an illegal packet."""
    client.send(b"\xf0\x00")
    client.expect_closed()


def end_inside_a_packet(client: RawClient) -> None:
    """The connection ends in the middle of a DISCONNECT."""
    client.send(wire.BYE[:1])
    client.drop()


def end_by_illegal_disconnect(client: RawClient) -> None:
    """A DISCONNECT with a reserved bit set is none."""
    client.send(b"\xe1\x00")
    client.expect_closed()


ENDS = [
    end_by_drop,
    end_by_reset,
    end_by_violation,
    end_inside_a_packet,
    end_by_illegal_disconnect,
]


@statement("MQTT-3.1.2-8", "MQTT-3.14.1-1")
@pytest.mark.parametrize("end", ENDS)
def test_will_is_published(brokers: Bench, end: object) -> None:
    """Once, at whatever end that is no DISCONNECT."""
    assert callable(end)
    sub = brokers.subscriber((brokers.topic("#"), 1))
    end(brokers.publisher(will=brokers.will(qos=1)))
    sub.acknowledge(sub.expect_publish(brokers.topic("will"), b"gone", qos=1, retain=False))
    brokers.silence(sub)


def test_will_is_not_published_while_connected(brokers: Bench) -> None:
    """Only the end of the connection does it."""
    sub = brokers.subscriber((brokers.topic("#"), 1))
    client = brokers.publisher(will=brokers.will(qos=1))
    client.ping()
    brokers.silence(sub, client)


@statement("MQTT-3.14.4-3", "MQTT-3.1.2-10")
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_disconnect_discards_the_will(brokers: Bench, clean: bool) -> None:
    """DISCONNECT, and nothing is published; not at a later end of the session's client either."""
    name = unique()
    sub = brokers.subscriber((brokers.topic("#"), 1))
    will = brokers.will(qos=1)
    brokers.client(name, at=brokers.pub, clean=clean, will=will).disconnect()
    brokers.silence(sub)
    brokers.client(name, at=brokers.pub, clean=clean).drop()
    brokers.silence(sub)


@statement("MQTT-3.14.4-3")
def test_disconnect_and_end_in_one_write(brokers: Bench) -> None:
    """The end of the stream right behind the DISCONNECT changes nothing."""
    sub = brokers.subscriber((brokers.topic("#"), 1))
    client = brokers.open(brokers.pub)
    client.send(wire.connect(unique(), will=brokers.will(qos=1)), wire.BYE)
    client.drop()
    brokers.silence(sub)


@statement("MQTT-3.1.2-10")
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_will_is_published_only_once(brokers: Bench, clean: bool) -> None:
    """Gone from the session: the next connection has no will, unless it brings one."""
    name = unique()
    sub = brokers.subscriber((brokers.topic("#"), 1))
    brokers.client(name, at=brokers.pub, clean=clean, will=brokers.will(qos=1)).drop()
    sub.acknowledge(sub.expect_publish(payload=b"gone"))
    brokers.client(name, at=brokers.pub, clean=clean).drop()
    brokers.silence(sub)


@statement("MQTT-3.1.2-12")
def test_no_will_flag_no_will(brokers: Bench) -> None:
    """A connection without a will ends silently."""
    sub = brokers.subscriber((brokers.topic("#"), 1))
    brokers.publisher().drop()
    brokers.silence(sub)


@statement("MQTT-3.1.2-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_will_qos(brokers: Bench, qos: int, granted: int) -> None:
    """The will has its own QoS, lowered by the subscription as for any message."""
    sub = brokers.subscriber((brokers.topic("#"), granted))
    brokers.publisher(will=brokers.will(qos=qos)).drop()
    message = sub.expect_publish(brokers.topic("will"), qos=min(qos, granted))
    sub.acknowledge(message)


@statement("MQTT-3.1.2-16", "MQTT-3.1.2-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_will_that_is_not_retained(brokers: Bench, qos: int) -> None:
    """A later subscriber gets nothing, and an older retained message stays."""
    pub = brokers.publisher()
    pub.publish(brokers.topic("will"), b"before", qos=1, retain=True)
    sub = brokers.subscriber((brokers.topic("+"), 2))
    sub.acknowledge(sub.expect_publish(payload=b"before", retain=True))
    brokers.publisher(will=brokers.will(qos=qos)).drop()
    sub.acknowledge(sub.expect_publish(payload=b"gone", retain=False))
    later = brokers.subscriber(brokers.topic("will"))
    later.expect_publish(payload=b"before", retain=True)


@statement("MQTT-3.1.2-17", "MQTT-3.1.2-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_will_that_is_retained(brokers: Bench, qos: int) -> None:
    """RETAIN 0 to those who were there, RETAIN 1 to those who come."""
    sub = brokers.subscriber((brokers.topic("+"), 2))
    brokers.publisher(will=brokers.will(qos=qos, retain=True)).drop()
    sub.acknowledge(sub.expect_publish(brokers.topic("will"), b"gone", retain=False))
    later = brokers.subscriber((brokers.topic("will"), 2))
    later.acknowledge(later.expect_publish(payload=b"gone", retain=True, qos=qos))


@statement("MQTT-3.1.2-17", "MQTT-3.3.1-10", "MQTT-3.3.1-11")
def test_empty_retained_will_clears(brokers: Bench) -> None:
    """A will of no bytes is delivered, and removes what was retained."""
    brokers.publisher().publish(brokers.topic("will"), b"before", qos=1, retain=True)
    sub = brokers.subscriber((brokers.topic("will"), 0))
    sub.expect_publish(payload=b"before", retain=True)
    brokers.publisher(will=brokers.will(payload=b"", retain=True)).drop()
    sub.expect_publish(brokers.topic("will"), b"", retain=False)
    brokers.silence(brokers.subscriber(brokers.topic("will")))


@statement("MQTT-3.1.2-8")
def test_will_message_is_any_bytes(brokers: Bench) -> None:
    """It is no string: 64 KiB less one of all byte values."""
    payload = (bytes(range(256)) * 256)[:65_535]
    sub = brokers.subscriber(brokers.topic("#"))
    brokers.publisher(will=brokers.will(payload=payload)).drop()
    sub.expect_publish(brokers.topic("will"), payload)


@statement("MQTT-3.1.2-8")
def test_will_comes_after_what_the_client_published(brokers: Bench) -> None:
    """Last words are last, for one topic and QoS."""
    sub = brokers.subscriber((brokers.topic("will"), 1))
    client = brokers.publisher(will=brokers.will(qos=1))
    batch = [
        wire.publish(brokers.topic("will"), b"%d" % n, qos=1, packet_id=n) for n in range(1, 21)
    ]
    client.send(*batch)
    client.drop()
    got = [m.payload for m in sub.take(21)]
    assert got == [b"%d" % n for n in range(1, 21)] + [b"gone"]


@statement("MQTT-3.1.2-8", "MQTT-4.5.0-1")
def test_will_is_queued_for_a_session_that_is_away(brokers: Bench) -> None:
    """A message like any other."""
    client = brokers.client(clean=False)
    client.subscribe((brokers.topic("#"), 1))
    client.disconnect()
    watcher = brokers.subscriber(brokers.topic("#"))
    brokers.publisher(will=brokers.will(qos=1)).drop()
    watcher.expect_publish(payload=b"gone")
    client = brokers.resume(str(client.client_id))
    client.acknowledge(client.expect_publish(payload=b"gone", qos=1))


@statement("MQTT-4.7.1-1", "MQTT-3.1.4-1")
@pytest.mark.parametrize("topic", ["#", "+", "a/#", "a/+/b", "a+", "a#"])
def test_will_topic_with_wildcards_closes(broker: Bench, topic: str) -> None:
    """A will topic is a topic name."""
    client = broker.open()
    client.send(wire.connect(unique(), will=Will(topic=topic)))
    client.expect_closed()
