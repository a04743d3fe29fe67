"""
Fixed headers, packet identifiers, remaining lengths and packets in pieces (2.2.2, 2.3.1, 7.1.1).
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.wire import (
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)

from .harness import Bench
from .statements import statement

# A legal packet of each kind that a connected client may send, for spoiling its flags.
LEGAL = {
    "PUBACK": wire.ack(PUBACK, 1),
    "PUBREC": wire.ack(PUBREC, 1),
    "PUBREL": wire.ack(PUBREL, 1),
    "PUBCOMP": wire.ack(PUBCOMP, 1),
    "SUBSCRIBE": wire.subscribe(1, ("spoiled", 0)),
    "UNSUBSCRIBE": wire.unsubscribe(1, "spoiled"),
    "PINGREQ": wire.PING,
    "DISCONNECT": wire.BYE,
}


@statement("MQTT-2.2.2-2", "MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1")
@pytest.mark.parametrize("bit", [1, 2, 4, 8])
@pytest.mark.parametrize("name", LEGAL)
def test_wrong_flags_close(broker: Bench, name: str, bit: int) -> None:
    """Each reserved bit turned round, in each packet: closed, and no answer."""
    good = LEGAL[name]
    client = broker.client()
    client.send(bytes([good[0] ^ bit]) + good[1:])
    client.expect_closed()


@statement("MQTT-2.2.2-2", "MQTT-3.1.4-1")
@pytest.mark.parametrize("bit", [1, 2, 4, 8])
def test_wrong_flags_of_connect_close(broker: Bench, bit: int) -> None:
    """A CONNECT with reserved bits set gets no CONNACK."""
    good = wire.connect("flags")
    client = broker.open()
    client.send(bytes([good[0] ^ bit]) + good[1:])
    client.expect_closed()


@statement("MQTT-2.2.2-1")
def test_server_sends_the_flags_of_the_table(broker: Bench) -> None:
    """Every kind of packet that a server sends, seen once, with its flags."""
    client = broker.client()
    topic = broker.topic()
    flags = {}
    client.send(wire.subscribe(1, (topic, 2)))
    flags["SUBACK"] = client.expect(SUBACK).flags
    client.send(wire.publish(topic, b"1", qos=1, packet_id=1))
    flags["PUBACK"] = client.wait_for(PUBACK, 1).flags
    first = client.expect_publish(qos=1)
    client.acknowledge(first)
    client.send(wire.publish(topic, b"2", qos=2, packet_id=2))
    flags["PUBREC"] = client.wait_for(PUBREC, 2).flags
    client.send(wire.ack(PUBREL, 2))
    flags["PUBCOMP"] = client.wait_for(PUBCOMP, 2).flags
    second = client.expect_publish(qos=2)
    client.send(wire.ack(PUBREC, second.packet_id))
    flags["PUBREL"] = client.wait_for(PUBREL, second.packet_id).flags
    client.send(wire.ack(PUBCOMP, second.packet_id), wire.unsubscribe(3, topic), wire.PING)
    flags["UNSUBACK"] = client.expect(UNSUBACK).flags
    flags["PINGRESP"] = client.expect(PINGRESP).flags
    assert flags == {name: 2 if name == "PUBREL" else 0 for name in flags}


@statement("MQTT-2.3.1-1")
@pytest.mark.parametrize(
    "data",
    [
        wire.subscribe(0, ("zero", 1)),
        wire.unsubscribe(0, "zero"),
        wire.publish("zero", b"p", qos=1, packet_id=0),
        wire.publish("zero", b"p", qos=2, packet_id=0),
    ],
    ids=["subscribe", "unsubscribe", "publish-1", "publish-2"],
)
def test_packet_identifier_zero_closes(broker: Bench, data: bytes) -> None:
    """0 is no packet identifier."""
    client = broker.client()
    client.send(data)
    client.expect_closed()


@statement("MQTT-2.3.1-1", "MQTT-2.3.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_server_uses_identifiers_that_are_free(brokers: Bench, qos: int) -> None:
    """Forty deliveries open at once: as many different identifiers, none 0, then free again."""
    sub = brokers.subscriber((brokers.topic(), qos))
    pub = brokers.publisher()
    for number in range(40):
        pub.publish(brokers.topic(), b"%d" % number, qos=qos)
    open_now = [sub.expect_publish(payload=b"%d" % number, qos=qos) for number in range(40)]
    assert len({m.packet_id for m in open_now} - {0}) == 40
    for message in open_now:
        sub.acknowledge(message)
    pub.publish(brokers.topic(), b"more", qos=qos)
    sub.expect_publish(payload=b"more", qos=qos)


@statement("MQTT-2.3.1-5")
def test_no_identifier_at_qos_0(brokers: Bench) -> None:
    """The payload begins right after the topic, both ways."""
    topic = brokers.topic()
    sub = brokers.subscriber(topic)
    brokers.publisher().send(wire.publish(topic, b"\x00\x01hello"))
    raw = sub.expect(PUBLISH)
    assert raw.flags == 0 and raw.body == wire.string(topic) + b"\x00\x01hello"


@statement("MQTT-2.3.1-6")
@pytest.mark.parametrize("packet_id", [1, 255, 256, 0x1234, 65_535])
def test_acknowledgements_carry_the_identifier(broker: Bench, packet_id: int) -> None:
    """PUBACK, PUBREC and PUBCOMP repeat what PUBLISH and PUBREL said."""
    client = broker.client()
    client.send(wire.publish(broker.topic(), b"p", qos=1, packet_id=packet_id))
    assert client.expect(PUBACK).packet_id == packet_id
    client.send(wire.publish(broker.topic(), b"p", qos=2, packet_id=packet_id))
    assert client.expect(PUBREC).packet_id == packet_id
    client.send(wire.ack(PUBREL, packet_id))
    assert client.expect(PUBCOMP).packet_id == packet_id


@statement("MQTT-2.3.1-7", "MQTT-3.8.4-2", "MQTT-3.10.4-4")
@pytest.mark.parametrize("packet_id", [1, 255, 256, 0x1234, 65_535])
def test_suback_and_unsuback_carry_the_identifier(broker: Bench, packet_id: int) -> None:
    """The answer names the request."""
    client = broker.client()
    client.send(wire.subscribe(packet_id, (broker.topic(), 1)))
    assert client.expect(SUBACK).packet_id == packet_id
    client.send(wire.unsubscribe(packet_id, broker.topic()))
    assert client.expect(UNSUBACK).packet_id == packet_id


@statement("MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "data",
    [
        b"\x30\xff\xff\xff\xff\x01",
        b"\x30\x80\x80\x80\x80\x00",
        b"\xc0\x01\x00",
        b"\xe0\x01\x00",
        b"\x40\x01\x00",
        b"\x40\x03\x00\x01\x00",
        b"\x62\x00",
        b"\x50\x04\x00\x01\x00\x00",
        b"\x30\x00",
        b"\x30\x01\x00",
        b"\x30\x03\x00\x05a",
        b"\x32\x04\x00\x01a\x00",
        b"\x82\x02\x00\x01",
        b"\x82\x05\x00\x01\x00\x01a",
        b"\x82\x06\x00\x01\x00\x09a\x00",
        b"\xa2\x04\x00\x01\x00\x09",
    ],
    ids=lambda data: data.hex(),
)
def test_wrong_lengths_close(broker: Bench, data: bytes) -> None:
    """Lengths of five bytes, packets that are too long or end inside a field."""
    client = broker.client()
    client.send(data)
    client.expect_closed()


@statement("MQTT-4.8.0-1")
@pytest.mark.parametrize("kind", [0, 2, 9, 11, 13, 15])
def test_kinds_that_no_client_sends_close(broker: Bench, kind: int) -> None:
    """The reserved kinds 0 and 15, CONNACK, SUBACK, UNSUBACK and PINGRESP."""
    client = broker.client()
    client.send(wire.packet(kind, 0, b"" if kind == 13 else b"\x00\x01\x00"))
    client.expect_closed()


@statement("MQTT-7.1.1-1")
def test_packets_in_single_bytes(brokers: Bench) -> None:
    """A stream has no packet borders: everything arrives byte by byte."""
    sub = brokers.open()
    sub.trickle(wire.connect("", keep_alive=60) + wire.subscribe(7, (brokers.topic(), 2)))
    assert sub.expect(wire.CONNACK).body == b"\x00\x00"
    assert sub.expect(SUBACK).body == b"\x00\x07\x02"
    pub = brokers.publisher()
    pub.trickle(wire.publish(brokers.topic(), b"one" * 50, qos=2, packet_id=3))
    pub.expect(PUBREC, 3)
    pub.trickle(wire.ack(PUBREL, 3) + wire.PING)
    pub.expect(PUBCOMP, 3)
    pub.expect(PINGRESP)
    sub.expect_publish(payload=b"one" * 50, qos=2)


@statement("MQTT-7.1.1-1", "MQTT-7.0.0-2")
def test_many_packets_in_one_write(brokers: Bench) -> None:
    """A whole conversation without waiting for any answer, answered in full and in order."""
    topic = brokers.topic()
    sub = brokers.subscriber((topic, 0))
    pub = brokers.open(brokers.pub)
    batch = [wire.publish(topic, b"%d" % n, qos=1, packet_id=n) for n in range(1, 101)]
    pub.send(wire.connect(""), wire.subscribe(1, ("other", 1)), *batch, wire.PING)
    pub.expect(wire.CONNACK)
    acks = [pub.receive() for _ in range(102)]
    assert sorted(p.kind for p in acks) == sorted([SUBACK, *[PUBACK] * 100, PINGRESP])
    assert [p.packet_id for p in acks if p.kind == PUBACK] == list(range(1, 101))
    assert [m.payload for m in sub.take(100)] == [b"%d" % n for n in range(1, 101)]


@statement("MQTT-7.1.1-1")
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_383, 16_384, 300_000, 2_097_152])
def test_remaining_lengths_of_one_to_four_bytes(brokers: Bench, size: int) -> None:
    """Packets around each border of the length field pass whole."""
    topic = brokers.topic()
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[: max(0, size - len(wire.string(topic)))]
    sub = brokers.subscriber((topic, 1))
    brokers.publisher().publish(topic, payload, qos=1)
    sub.expect_publish(topic, payload)


@statement("MQTT-3.8.1-1", "MQTT-3.10.1-1")
def test_subscribe_with_wrong_flags_has_no_effect(broker: Bench) -> None:
    """Closed before anything is subscribed or unsubscribed: the session shows it."""
    kept, never = broker.topic("kept"), broker.topic("never")
    client = broker.client(clean=False)
    name = str(client.client_id)
    client.subscribe((kept, 1))
    client.send(wire.packet(SUBSCRIBE, 0, b"\x00\x01" + wire.string(never) + b"\x01"))
    client.expect_closed()
    client = broker.resume(name)
    client.send(wire.packet(UNSUBSCRIBE, 0, b"\x00\x01" + wire.string(kept)))
    client.expect_closed()
    client = broker.resume(name)
    pub = broker.publisher()
    pub.publish(never, b"never", qos=1)
    pub.publish(kept, b"kept", qos=1)
    client.acknowledge(client.expect_publish(kept, b"kept"))
    broker.silence(client, pub)
