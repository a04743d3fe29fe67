"""
The delivery protocols of QoS 1 and 2, the server as sender and as receiver (4.3).
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.wire import PUBACK, PUBCOMP, PUBREC, PUBREL

from .harness import Bench, unique
from .statements import statement


@statement("MQTT-4.3.2-2", "MQTT-3.3.4-1")
@pytest.mark.parametrize("dup", [False, True])
def test_qos_1_identifier_is_new_after_puback(brokers: Bench, dup: bool) -> None:
    """The same identifier again is a new publication, whatever DUP says."""
    sub = brokers.subscriber((brokers.topic(), 1))
    pub = brokers.publisher()
    for number in range(3):
        data = wire.publish(
            brokers.topic(), b"%d" % number, qos=1, packet_id=7, dup=dup and number > 0
        )
        pub.send(data)
        pub.expect(PUBACK, 7)
        sub.acknowledge(sub.expect_publish(payload=b"%d" % number, qos=1))


@statement("MQTT-4.3.2-1", "MQTT-3.3.1-1", "MQTT-4.4.0-1")
def test_qos_1_is_unacknowledged_until_puback(brokers: Bench) -> None:
    """DUP 0 at first; without PUBACK it comes again with DUP 1 and its identifier; then not."""
    client = brokers.client(clean=False)
    name = str(client.client_id)
    client.subscribe((brokers.topic(), 1))
    brokers.publisher().publish(brokers.topic(), b"p", qos=1)
    first = client.expect_publish(payload=b"p", qos=1, dup=False)
    for _ in range(2):
        client.drop()
        client = brokers.resume(name)
        client.expect_publish(payload=b"p", qos=1, dup=True, packet_id=first.packet_id)
    client.send(wire.ack(PUBACK, first.packet_id))
    client.ping()
    client.drop()
    brokers.silence(brokers.resume(name))


@statement("MQTT-4.3.2-1")
def test_puback_of_another_identifier_acknowledges_nothing(brokers: Bench) -> None:
    """Only the corresponding PUBACK counts."""
    client = brokers.client(clean=False)
    client.subscribe((brokers.topic(), 1))
    pub = brokers.publisher()
    for payload in (b"one", b"two"):
        pub.publish(brokers.topic(), payload, qos=1)
    one, two = client.expect_publish(payload=b"one"), client.expect_publish(payload=b"two")
    client.send(wire.ack(PUBACK, two.packet_id))
    client.ping()
    client.drop()
    client = brokers.resume(str(client.client_id))
    client.acknowledge(client.expect_publish(payload=b"one", packet_id=one.packet_id, dup=True))
    brokers.silence(client, pub)


@statement("MQTT-4.3.3-1", "MQTT-2.3.1-6")
def test_qos_2_sender(brokers: Bench) -> None:
    """PUBLISH with DUP 0; PUBREC brings PUBREL with the identifier, a second PUBREC does again."""
    sub = brokers.subscriber((brokers.topic(), 2))
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"p", qos=2)
    message = sub.expect_publish(payload=b"p", qos=2, dup=False)
    for _ in range(2):
        sub.send(wire.ack(PUBREC, message.packet_id))
        sub.expect(PUBREL, message.packet_id)
    sub.send(wire.ack(PUBCOMP, message.packet_id))
    brokers.silence(sub, pub)


@statement("MQTT-4.3.3-1", "MQTT-3.3.1-1", "MQTT-4.4.0-1")
def test_qos_2_is_unacknowledged_until_pubrec(brokers: Bench) -> None:
    """Without PUBREC the PUBLISH comes again, DUP 1, same identifier."""
    client = brokers.client(clean=False)
    name = str(client.client_id)
    client.subscribe((brokers.topic(), 2))
    brokers.publisher().publish(brokers.topic(), b"p", qos=2)
    first = client.expect_publish(payload=b"p", qos=2, dup=False)
    client.drop()
    client = brokers.resume(name)
    again = client.expect_publish(payload=b"p", qos=2, dup=True, packet_id=first.packet_id)
    client.acknowledge(again)
    client.ping()
    client.drop()
    brokers.silence(brokers.resume(name))


@statement("MQTT-4.3.3-1", "MQTT-4.4.0-1")
def test_pubrel_is_unacknowledged_until_pubcomp(brokers: Bench) -> None:
    """After PUBREC the PUBLISH never comes again, only the PUBREL does, until PUBCOMP."""
    client = brokers.client(clean=False)
    name = str(client.client_id)
    client.subscribe((brokers.topic(), 2))
    brokers.publisher().publish(brokers.topic(), b"p", qos=2)
    message = client.expect_publish(payload=b"p", qos=2)
    client.send(wire.ack(PUBREC, message.packet_id))
    client.expect(PUBREL, message.packet_id)
    for _ in range(2):
        client.drop()
        client = brokers.resume(name)
        client.expect(PUBREL, message.packet_id)
        client.ping()
    client.send(wire.ack(PUBCOMP, message.packet_id))
    client.ping()
    client.drop()
    brokers.silence(brokers.resume(name))


@statement("MQTT-4.3.3-2")
@pytest.mark.parametrize("dup", [False, True])
def test_qos_2_receiver_delivers_once(brokers: Bench, dup: bool) -> None:
    """
    The identifier again before PUBREL: PUBREC each time, no second delivery; PUBREL: PUBCOMP;
    then the identifier is free for a new publication.
    """
    sub = brokers.subscriber((brokers.topic(), 1))
    pub = brokers.publisher()
    for payload in (b"one", b"two"):
        pub.send(wire.publish(brokers.topic(), payload, qos=2, packet_id=9))
        pub.expect(PUBREC, 9)
        for _ in range(3):
            pub.send(wire.publish(brokers.topic(), payload, qos=2, packet_id=9, dup=dup))
            pub.expect(PUBREC, 9)
        pub.send(wire.ack(PUBREL, 9))
        pub.expect(PUBCOMP, 9)
        sub.acknowledge(sub.expect_publish(payload=payload))
    brokers.silence(sub, pub)


@statement("MQTT-4.3.3-2")
def test_repeats_in_one_write(brokers: Bench) -> None:
    """The repeats come before the first has been answered."""
    sub = brokers.subscriber((brokers.topic(), 2))
    pub = brokers.publisher()
    again = wire.publish(brokers.topic(), b"p", qos=2, packet_id=9, dup=True)
    pub.send(wire.publish(brokers.topic(), b"p", qos=2, packet_id=9), again, again)
    for _ in range(3):
        pub.expect(PUBREC, 9)
    pub.send(wire.ack(PUBREL, 9))
    pub.expect(PUBCOMP, 9)
    sub.acknowledge(sub.expect_publish(payload=b"p"))
    brokers.silence(sub, pub)


@statement("MQTT-4.3.3-2", "MQTT-4.1.0-1", "MQTT-3.1.2-4")
def test_open_reception_is_part_of_the_session(brokers: Bench) -> None:
    """A client that comes back and sends its PUBLISH again causes no second delivery."""
    name = unique()
    sub = brokers.subscriber((brokers.topic(), 2))
    pub = brokers.client(name, at=brokers.pub, clean=False)
    pub.send(wire.publish(brokers.topic(), b"p", qos=2, packet_id=9))
    pub.expect(PUBREC, 9)
    for _ in range(2):
        pub.drop()
        pub = brokers.resume(name, at=brokers.pub)
        pub.send(wire.publish(brokers.topic(), b"p", qos=2, packet_id=9, dup=True))
        pub.expect(PUBREC, 9)
    pub.send(wire.ack(PUBREL, 9))
    pub.expect(PUBCOMP, 9)
    sub.acknowledge(sub.expect_publish(payload=b"p"))
    brokers.silence(sub, pub)


@statement("MQTT-4.3.3-2", "MQTT-4.1.0-1")
def test_pubrel_after_a_reconnect(brokers: Bench) -> None:
    """The rest of the conversation on the next connection: PUBCOMP, delivered once."""
    name = unique()
    sub = brokers.subscriber((brokers.topic(), 2))
    pub = brokers.client(name, at=brokers.pub, clean=False)
    pub.send(wire.publish(brokers.topic(), b"p", qos=2, packet_id=9))
    pub.expect(PUBREC, 9)
    pub.drop()
    pub = brokers.resume(name, at=brokers.pub)
    for _ in range(2):
        pub.send(wire.ack(PUBREL, 9))
        pub.expect(PUBCOMP, 9)
    sub.acknowledge(sub.expect_publish(payload=b"p"))
    brokers.silence(sub, pub)


@statement("MQTT-4.3.3-2")
def test_pubrel_for_an_unknown_identifier_is_answered(broker: Bench) -> None:
    """A sender that did not get its PUBCOMP must be able to finish."""
    client = broker.client()
    client.send(wire.ack(PUBREL, 1234))
    client.expect(PUBCOMP, 1234)


@statement("MQTT-4.3.2-2", "MQTT-4.3.3-2")
def test_identifiers_of_the_two_directions_are_apart(brokers: Bench) -> None:
    """A client's own identifiers and the server's have nothing to do with one another."""
    client = brokers.subscriber((brokers.topic("in"), 2))
    pub = brokers.publisher()
    pub.publish(brokers.topic("in"), b"p", qos=2)
    message = client.expect_publish(payload=b"p", qos=2)
    for qos, kind in ((1, PUBACK), (2, PUBREC)):
        same = wire.publish(brokers.topic("out"), b"p", qos=qos, packet_id=message.packet_id)
        client.send(same)
        client.expect(kind, message.packet_id)
    client.send(wire.ack(PUBREC, message.packet_id))
    client.expect(PUBREL, message.packet_id)
    client.send(wire.ack(PUBREL, message.packet_id), wire.ack(PUBCOMP, message.packet_id))
    client.expect(PUBCOMP, message.packet_id)
    brokers.silence(client, pub)


@statement("MQTT-4.3.3-2", "MQTT-4.6.0-3")
def test_many_open_receptions(brokers: Bench) -> None:
    """A hundred at once: each delivered once, in the order published."""
    sub = brokers.subscriber((brokers.topic(), 0))
    pub = brokers.publisher()
    ids = range(1, 101)
    pub.send(*[wire.publish(brokers.topic(), b"%d" % n, qos=2, packet_id=n) for n in ids])
    for number in ids:
        pub.expect(PUBREC, number)
    for number in ids:
        pub.send(wire.ack(PUBREL, number))
        pub.expect(PUBCOMP, number)
    assert [int(m.payload) for m in sub.take(100)] == list(ids)
    brokers.silence(sub, pub)


@statement("MQTT-4.8.0-1")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("qos", "kinds"),
    [(1, [PUBREC]), (1, [PUBCOMP]), (2, [PUBACK]), (2, [PUBCOMP]), (2, [PUBREC, PUBACK])],
)
def test_an_acknowledgement_of_the_wrong_kind_closes(
    broker: Bench, clean: bool, qos: int, kinds: list[int]
) -> None:
    """Ignored, it would stall a window of one; the message comes again in a kept session."""
    name = unique()
    client = broker.client(name, clean=clean)
    client.subscribe((broker.topic(), 2))
    pub = broker.publisher()
    pub.publish(broker.topic(), b"p", qos=qos)
    message = client.expect_publish(payload=b"p", qos=qos)
    client.send(wire.ack(kinds[0], message.packet_id))
    if len(kinds) == 2:
        client.expect(PUBREL, message.packet_id)
        client.send(wire.ack(kinds[1], message.packet_id))
    client.expect_closed()
    if not clean:
        client = broker.resume(name)
        if len(kinds) == 2:
            client.expect(PUBREL, message.packet_id)
            client.send(wire.ack(PUBCOMP, message.packet_id))
        else:
            client.acknowledge(client.expect_publish(payload=b"p", qos=qos, dup=True))
    broker.silence(client if not clean else pub, pub)
