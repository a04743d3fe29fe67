"""
PUBLISH: flags, topic names, the answer to it, overlapping filters (3.3).
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.rawclient import RawClient
from tests.support.wire import PINGRESP, PUBACK, PUBLISH, PUBREC, Publish

from .harness import Bench
from .statements import statement


@statement("MQTT-3.3.4-1")
def test_answer_by_qos(broker: Bench) -> None:
    """Nothing for QoS 0, PUBACK for 1, PUBREC for 2, and only that."""
    client = broker.client()
    client.send(wire.publish(broker.topic(), b"0"), wire.PING)
    client.expect(PINGRESP)
    client.send(wire.publish(broker.topic(), b"1", qos=1, packet_id=11))
    client.expect(PUBACK, 11)
    client.ping()
    client.send(wire.publish(broker.topic(), b"2", qos=2, packet_id=12))
    client.expect(PUBREC, 12)
    client.ping()


@statement("MQTT-3.3.1-4", "MQTT-4.8.0-1")
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_qos_3_closes(brokers: Bench, dup: bool, retain: bool) -> None:
    """Both QoS bits: closed, not delivered, not retained."""
    sub = brokers.subscriber(brokers.topic("#"))
    client = brokers.publisher()
    bad = wire.publish(brokers.topic(), b"bad", qos=3, packet_id=1, retain=retain, dup=dup)
    client.send(bad, wire.publish(brokers.topic(), b"after"))
    client.expect_closed()
    brokers.silence(sub)
    brokers.silence(brokers.subscriber(brokers.topic("#")))


@statement("MQTT-3.3.1-2", "MQTT-4.8.0-1")
def test_dup_at_qos_0_closes(brokers: Bench) -> None:
    """DUP must be 0 there; it is a violation that nobody states otherwise about."""
    sub = brokers.subscriber(brokers.topic("#"))
    client = brokers.publisher()
    client.send(wire.publish(brokers.topic(), b"bad", dup=True))
    client.expect_closed()
    brokers.silence(sub)


@statement("MQTT-3.3.1-2", "MQTT-3.3.1-3", "MQTT-4.3.1-1")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_not_passed_on(brokers: Bench, qos: int, granted: int) -> None:
    """DUP from a publisher says nothing about the delivery, which is the first."""
    sub = brokers.subscriber((brokers.topic(), granted))
    brokers.publisher().publish(brokers.topic(), b"p", qos=qos, dup=True)
    sub.acknowledge(sub.expect_publish(payload=b"p", qos=min(qos, granted), dup=False))


@statement("MQTT-4.3.1-1", "MQTT-3.3.1-2")
@pytest.mark.parametrize("published", [0, 1, 2])
def test_qos_0_delivery(brokers: Bench, published: int) -> None:
    """QoS 0, DUP 0, no identifier, whatever the QoS of the publication was."""
    sub = brokers.subscriber((brokers.topic(), 0))
    brokers.publisher().publish(brokers.topic(), b"p", qos=published)
    raw = sub.expect(PUBLISH)
    assert raw.flags == 0 and raw.body == wire.string(brokers.topic()) + b"p"


@statement("MQTT-3.3.2-2", "MQTT-4.7.1-1", "MQTT-4.8.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("last", ["#", "+", "a+", "a#", "+/a", "#/a", "a/+/b", "##"])
def test_wildcard_in_a_topic_name_closes(broker: Bench, last: str, qos: int) -> None:
    """Closed without an acknowledgement, and nobody gets it."""
    sub = broker.subscriber(broker.topic("#"))
    client = broker.publisher()
    client.send(wire.publish(broker.topic(last), b"bad", qos=qos, packet_id=1))
    client.expect_closed()
    broker.silence(sub)


@statement("MQTT-3.3.2-1", "MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\x00\x02a", b"\xff\xffabc"], ids=["none", "half", "short", "long"]
)
def test_publish_without_a_whole_topic_closes(broker: Bench, body: bytes) -> None:
    """The topic name must be there, first and complete."""
    client = broker.client()
    client.send(wire.packet(PUBLISH, 0, body))
    client.expect_closed()


@statement("MQTT-3.3.2-3")
def test_delivery_has_the_topic_of_the_publication(brokers: Bench) -> None:
    """Also through wildcards; and only topics that match come."""
    sub = brokers.subscriber((brokers.topic("+/in/#"), 1))
    pub = brokers.publisher()
    names = ["a/in", "a/in/b", "a/out/b", "b/in/c/d", "in", "a/b/in"]
    for name in names:
        pub.publish(brokers.topic(name), name.encode(), qos=1)
    got = brokers.until_marker(sub, pub)
    wanted = {"a/in", "a/in/b", "b/in/c/d"}
    assert {m.topic for m in got} == {brokers.topic(name) for name in wanted}
    assert all(m.topic == brokers.topic(m.payload.decode()) for m in got)
    assert len(got) == len(wanted)


def _copies(sub: RawClient, qos: int) -> list[Publish]:
    """What comes up to the first copy at `qos`, acknowledged; three filters give three at most."""
    got = sub.take(1)
    while got[-1].qos != qos:
        assert len(got) < 3, f"none of the copies has QoS {qos}"
        got += sub.take(1)
    return got


@statement("MQTT-3.3.5-1")
@pytest.mark.parametrize("published", [0, 1, 2])
def test_overlapping_filters(brokers: Bench, published: int) -> None:
    """At the highest QoS; further copies are allowed, one a filter at most, at its QoS at most."""
    topic = brokers.topic("x/y")
    sub = brokers.subscriber((brokers.topic("x/#"), 0), (brokers.topic("+/y"), 2), (topic, 1))
    pub = brokers.publisher()
    pub.publish(topic, b"p", qos=published)
    got = _copies(sub, published)
    got += brokers.until_marker(sub, pub)
    assert len(got) <= 3 and {(m.topic, m.payload) for m in got} == {(topic, b"p")}
    assert all(m.qos <= published for m in got)


@statement("MQTT-3.3.5-1")
@pytest.mark.parametrize("order", [(2, 1, 0), (0, 1, 2), (1, 2, 0)], ids=str)
def test_overlapping_filters_in_any_order(brokers: Bench, order: tuple[int, int, int]) -> None:
    """The highest QoS wins whether it was subscribed first or last, wide or narrow."""
    topic = brokers.topic("x")
    filters = list(zip((brokers.topic("#"), brokers.topic("+"), topic), order, strict=True))
    one, two = brokers.subscriber(*filters), brokers.subscriber(*reversed(filters))
    brokers.publisher().publish(topic, b"p", qos=2)
    for sub in (one, two):
        assert {m.payload for m in _copies(sub, 2)} == {b"p"}


@statement("MQTT-3.3.5-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_to_sys_is_acknowledged_and_discarded(broker: Bench, qos: int) -> None:
    """The one place where clients may not publish: as if taken, but nobody gets it."""
    topic = f"$SYS/{broker.base}"
    sub = broker.subscriber((f"$SYS/{broker.base}/#", 2), (topic, 2))
    pub = broker.publisher()
    pub.publish(topic, b"p", qos=qos, retain=True)
    pub.ping()
    broker.silence(sub, pub)
    broker.silence(broker.subscriber((topic, 2)), pub)


PAYLOADS = [b"", b"\x00", bytes(range(256)), b"\xc3\x28", b"x" * 100_000]


@statement("MQTT-3.3.4-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("payload", PAYLOADS, ids=["none", "null", "all", "no-text", "long"])
def test_payload_is_any_bytes(brokers: Bench, payload: bytes, qos: int) -> None:
    """Also none at all."""
    sub = brokers.subscriber((brokers.topic(), qos))
    brokers.publisher().publish(brokers.topic(), payload, qos=qos)
    sub.acknowledge(sub.expect_publish(brokers.topic(), payload, qos=qos))


@statement("MQTT-4.5.0-1")
def test_every_matching_session_gets_it(brokers: Bench) -> None:
    """On both nodes, connected or away, and the publisher itself; nobody else."""
    topic = brokers.topic("x/y")
    filters = [topic, brokers.topic("#"), brokers.topic("+/y"), brokers.topic("x/+")]
    subs = [brokers.subscriber((f, 1), at=at) for f in filters for at in (brokers.pub, brokers.sub)]
    away = brokers.client(clean=False)
    away.subscribe((topic, 1))
    away.disconnect()
    others = [brokers.subscriber((brokers.topic(f), 1)) for f in ("x", "y/#", "+/z")]
    pub = brokers.publisher()
    pub.subscribe((topic, 1))
    pub.publish(topic, b"all", qos=1)
    for client in (*subs, pub, brokers.resume(str(away.client_id))):
        client.acknowledge(client.expect_publish(topic, b"all", qos=1))
    for client in others:
        brokers.silence(client, pub)
