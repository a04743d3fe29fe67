"""
What comes again when a session is resumed, in which order, and the order of everything (4.4, 4.6).
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, parse_publish

from .harness import Bench, unique
from .statements import statement


@statement("MQTT-4.4.0-1", "MQTT-4.6.0-1", "MQTT-3.3.1-1", "MQTT-2.3.1-4")
def test_unacknowledged_messages_come_again_in_order(brokers: Bench) -> None:
    """
    Twenty of mixed QoS, none acknowledged: all again, DUP 1, with their identifiers, in the order
    of the first time; what was published meanwhile follows.
    """
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic(), 2))
    pub = brokers.publisher()
    for number in range(20):
        pub.publish(brokers.topic(), b"%d" % number, qos=1 + number % 2)
    first = [client.expect_publish() for _ in range(20)]
    assert not any(m.dup for m in first)
    client.drop()
    pub.publish(brokers.topic(), b"meanwhile", qos=1)
    client = brokers.resume(name)
    again = [client.expect_publish(dup=True) for _ in range(20)]
    assert [(m.payload, m.qos, m.packet_id) for m in again] == [
        (m.payload, m.qos, m.packet_id) for m in first
    ]
    last = client.expect_publish(payload=b"meanwhile", dup=False)
    assert last.packet_id not in {m.packet_id for m in again}
    for message in (*again, last):
        client.acknowledge(message)
    brokers.silence(client, pub)


@statement("MQTT-4.4.0-1", "MQTT-4.6.0-1", "MQTT-4.3.3-1")
def test_each_flow_goes_on_where_it_was(brokers: Bench) -> None:
    """
    Acknowledged: not again. PUBREC sent: PUBREL again. Nothing sent: PUBLISH again. Each kind in
    its order.
    """
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic(), 2))
    pub = brokers.publisher()
    for number in range(12):
        pub.publish(brokers.topic(), b"%d" % number, qos=2)
    sent = [client.expect_publish(payload=b"%d" % number, qos=2) for number in range(12)]
    for message in sent[:4]:
        client.acknowledge(message)
    for message in sent[4:8]:
        client.send(wire.ack(PUBREC, message.packet_id))
        client.expect(PUBREL, message.packet_id)
    client.drop()
    client = brokers.resume(name)
    again = [client.receive() for _ in range(8)]
    rels = [p.packet_id for p in again if p.kind == PUBREL]
    assert rels == [m.packet_id for m in sent[4:8]]
    publishes = [parse_publish(p) for p in again if p.kind == PUBLISH]
    assert [(m.payload, m.packet_id, m.dup) for m in publishes] == [
        (m.payload, m.packet_id, True) for m in sent[8:]
    ]
    for packet_id in rels:
        client.send(wire.ack(PUBCOMP, packet_id))
    for message in publishes:
        client.acknowledge(message)
    brokers.silence(client, pub)


@statement("MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_lost_over_many_reconnects(brokers: Bench, qos: int) -> None:
    """
    A client that vanishes again and again with some acknowledged: QoS 2 once each, QoS 1 at least
    once each, first appearances in order.
    """
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic(), qos))
    pub = brokers.publisher()
    seen: list[int] = []
    released: list[int] = []
    for turn in range(5):
        for number in range(turn * 10, turn * 10 + 10):
            pub.publish(brokers.topic(), b"%d" % number, qos=qos)
        for count in range(6):
            message = client.expect_publish(qos=qos)
            seen.append(int(message.payload))
            if count % 2 == 0 or count == 5:
                client.acknowledge(message)
                released.append(int(message.payload))
        client.drop()
        client = brokers.resume(name)
    rest = [int(m.payload) for m in brokers.until_marker(client, pub)]
    assert sorted(released + rest) == list(range(50))
    first = list(dict.fromkeys(seen + rest))
    assert first == sorted(first)


@statement("MQTT-4.4.0-1", "MQTT-3.1.4-2")
def test_takeover_resends_what_the_older_connection_held(brokers: Bench) -> None:
    """The session moves to the newer connection with all that is in flight."""
    name = unique()
    old = brokers.client(name, clean=False)
    old.subscribe((brokers.topic(), 1))
    pub = brokers.publisher()
    for number in range(5):
        pub.publish(brokers.topic(), b"%d" % number, qos=1)
    first = [old.expect_publish(payload=b"%d" % number) for number in range(5)]
    old.send(wire.ack(PUBACK, first[0].packet_id))
    old.ping()
    new = brokers.resume(name)
    old.expect_closed()
    for message in first[1:]:
        new.acknowledge(
            new.expect_publish(payload=message.payload, packet_id=message.packet_id, dup=True)
        )
    brokers.silence(new, pub)


@statement("MQTT-4.6.0-2")
def test_pubacks_in_order(brokers: Bench) -> None:
    """Two hundred in one write: as many PUBACKs, in that order."""
    pub = brokers.publisher()
    ids = [*range(500, 600), *range(1, 101)]
    pub.send(*[wire.publish(brokers.topic(), b"p", qos=1, packet_id=n) for n in ids])
    assert [pub.expect(PUBACK).packet_id for _ in ids] == ids


@statement("MQTT-4.6.0-3")
def test_pubrecs_in_order(brokers: Bench) -> None:
    """Two hundred in one write: as many PUBRECs, in that order."""
    pub = brokers.publisher()
    ids = [*range(500, 600), *range(1, 101)]
    pub.send(*[wire.publish(brokers.topic(), b"p", qos=2, packet_id=n) for n in ids])
    assert [pub.expect(PUBREC).packet_id for _ in ids] == ids


@statement("MQTT-4.6.0-4")
def test_pubrels_in_order(brokers: Bench) -> None:
    """The server releases in the order in which the PUBRECs came."""
    sub = brokers.subscriber((brokers.topic(), 2))
    pub = brokers.publisher()
    for number in range(30):
        pub.publish(brokers.topic(), b"%d" % number, qos=2)
    ids = [sub.expect_publish(payload=b"%d" % number).packet_id for number in range(30)]
    sub.send(*[wire.ack(PUBREC, packet_id) for packet_id in ids])
    assert [sub.expect(PUBREL).packet_id for _ in ids] == ids


@statement("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_messages_of_a_topic_stay_in_order(brokers: Bench, published: int, granted: int) -> None:
    """Three hundred in one write, more than an in-flight window: in order, none twice."""
    count = 300
    exact = brokers.subscriber((brokers.topic("x"), granted))
    wide = brokers.subscriber((brokers.topic("#"), granted))
    pub = brokers.publisher()
    batch = [
        wire.publish(brokers.topic("x"), b"%d" % n, qos=published, packet_id=n)
        for n in range(1, count + 1)
    ]
    pub.send(*batch)
    for sub in (exact, wide):
        if published == 2:
            _release(pub, count if sub is exact else 0)
        got = sub.take(count)
        assert [int(m.payload) for m in got] == list(range(1, count + 1))
        assert {m.qos for m in got} == {min(published, granted)}


def _release(pub: RawClient, count: int) -> None:
    """
    The publisher's part of `count` QoS 2 publications, each kind of answer in order; the first may
    be complete before the last has been received.
    """
    received = completed = 0
    while received < count:
        packet = pub.receive()
        if packet.kind == PUBREC:
            received += 1
            assert packet.packet_id == received
            pub.send(wire.ack(PUBREL, received))
        else:
            completed += 1
            assert (packet.kind, packet.packet_id) == (PUBCOMP, completed)


@statement("MQTT-4.6.0-6")
def test_order_of_each_qos_on_one_topic(brokers: Bench) -> None:
    """QoS 0, 1 and 2 mixed on one topic: those of each QoS are in order."""
    sub = brokers.subscriber((brokers.topic(), 2))
    pub = brokers.publisher()
    for number in range(90):
        pub.publish(brokers.topic(), b"%d" % number, qos=number % 3)
    got = sub.take(90)
    for qos in (0, 1, 2):
        numbers = [int(m.payload) for m in got if m.qos == qos]
        assert numbers == list(range(qos, 90, 3))


@statement("MQTT-4.6.0-6")
def test_order_from_each_of_several_clients(brokers: Bench) -> None:
    """Two publishers, on either node, into one topic: each one's messages are in its order."""
    sub = brokers.subscriber((brokers.topic(), 1))
    one, two = brokers.publisher(), brokers.client()
    for number in range(1, 101):
        for pub, name in ((one, b"one"), (two, b"two")):
            data = wire.publish(brokers.topic(), b"%s %d" % (name, number), qos=1, packet_id=number)
            pub.send(data)
    got = [m.payload.split() for m in sub.take(200)]
    for name in (b"one", b"two"):
        assert [int(number) for who, number in got if who == name] == list(range(1, 101))


@statement("MQTT-4.6.0-6")
def test_order_when_the_window_is_full(brokers: Bench) -> None:
    """A client that acknowledges nothing for a while: the rest follows in order when it does."""
    sub = brokers.subscriber((brokers.topic(), 1))
    pub = brokers.publisher()
    for number in range(250):
        pub.publish(brokers.topic(), b"%d" % number, qos=1)
    first = [sub.expect_publish(payload=b"%d" % number) for number in range(20)]
    for message in first:
        sub.acknowledge(message)
    assert [int(m.payload) for m in sub.take(230)] == list(range(20, 250))
    brokers.silence(sub, pub)
