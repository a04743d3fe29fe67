"""PUBLISH of level 5: properties, aliases, reason codes (sections 3.3 to 3.7)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.wire import PUBACK, PUBCOMP, PUBREC, PUBREL
from tests.support.wire5 import (
    ALIAS,
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    SUBSCRIPTION_ID,
    USER_PROPERTY,
    Properties,
)

from .harness import Bench5

ALL: Properties = [
    (PAYLOAD_FORMAT, 1),
    (CONTENT_TYPE, "text/plain"),
    (RESPONSE_TOPIC, "answers/here"),
    (CORRELATION_DATA, b"\x00\xff42"),
    (USER_PROPERTY, ("b", "1")),
    (USER_PROPERTY, ("a", "2")),
    (USER_PROPERTY, ("b", "1")),
    (USER_PROPERTY, ("", "")),
]


def order(properties: Properties) -> tuple[Properties, Properties]:
    """User properties in their order, the others sorted: their order means nothing."""
    users = [one for one in properties if one[0] == USER_PROPERTY]
    return users, sorted((one for one in properties if one[0] != USER_PROPERTY), key=str)


@level5_statement(
    "MQTT-3.3.2-4",
    "MQTT-3.3.2-15",
    "MQTT-3.3.2-16",
    "MQTT-3.3.2-17",
    "MQTT-3.3.2-18",
    "MQTT-3.3.2-20",
    "MQTT-3.3.4-1",
    "MQTT-3.8.4-8",
)
@pytest.mark.parametrize("sub_qos", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_forwarded(brokers5: Bench5, qos: int, sub_qos: int) -> None:
    """All of them, unchanged, user properties in their order."""
    sub = brokers5.subscriber((brokers5.topic(), sub_qos))
    brokers5.publisher().publish(brokers5.topic(), b"payload", qos=qos, properties=ALL)
    found = sub.expect_publish(brokers5.topic(), b"payload", qos=min(qos, sub_qos))
    assert order(found.properties) == order(ALL)
    sub.acknowledge(found)


@pytest.mark.parametrize("size", [0, 1, 100, 200, 16_000, 70_000])
def test_sizes(brokers5: Bench5, size: int) -> None:
    """Lists and payloads whose lengths take one to three bytes."""
    sub = brokers5.subscriber((brokers5.topic(), 1))
    pub = brokers5.publisher()
    properties: Properties = [(USER_PROPERTY, ("k", "v" * min(size, 65_000)))]
    for qos in (0, 1):
        pub.publish(brokers5.topic(), b"x" * size, qos=qos, properties=properties)
        found = sub.expect_publish(brokers5.topic(), b"x" * size, properties=properties)
        sub.acknowledge(found)


@level5_statement("MQTT-3.3.1-5", "MQTT-3.3.2-17", "MQTT-4.5.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_kept(brokers5: Bench5, qos: int) -> None:
    """With a retained message, and in a session that is away."""
    name = unique()
    sub = brokers5.client(name, expiry=60)
    sub.subscribe((brokers5.topic(), 2))
    sub.disconnect()
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"kept", qos=qos, retain=True, properties=ALL)
    brokers5.settle(pub)
    late = brokers5.subscriber((brokers5.topic(), 2))
    found = late.expect_publish(brokers5.topic(), b"kept", retain=True, qos=qos)
    assert order(found.properties) == order(ALL)
    late.acknowledge(found)
    if qos:
        sub = brokers5.resume(name, expiry=60)
        found = sub.expect_publish(brokers5.topic(), b"kept", retain=False, qos=qos)
        assert order(found.properties) == order(ALL)
        sub.acknowledge(found)
    pub.publish(brokers5.topic(), b"", retain=True, qos=1)


@level5_statement("MQTT-4.6.0-5", "MQTT-2.2.1-5")
def test_many_in_one_write(brokers5: Bench5) -> None:
    """With and without properties, all QoS, in order."""
    sub = brokers5.subscriber((brokers5.topic("#"), 2))
    pub = brokers5.publisher()
    packets, ids = [], []
    for number in range(600):
        qos = number % 3
        if qos:
            ids.append((qos, number))
        properties: Properties = [(USER_PROPERTY, ("n", str(number)))] if number % 4 else []
        packets.append(
            wire5.publish(
                brokers5.topic(str(qos)),
                b"%d" % number,
                qos=qos,
                packet_id=number if qos else 0,
                properties=properties,
            )
        )
    pub.send(*packets)
    for qos, packet_id in ids:
        pub.wait_for(PUBACK if qos == 1 else PUBREC, packet_id)
        if qos == 2:
            pub.send(wire5.ack(PUBREL, packet_id))
            pub.wait_for(PUBCOMP, packet_id)
    got = sub.take(600)
    for qos in (0, 1, 2):
        mine = [m for m in got if m.qos == qos]
        assert [int(m.payload) for m in mine] == list(range(qos, 600, 3))
        for m in mine:
            number = int(m.payload)
            assert m.properties == ([(USER_PROPERTY, ("n", str(number)))] if number % 4 else [])


@level5_statement("MQTT-3.3.2-12", "MQTT-3.2.2-17")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_aliases(brokers5: Bench5, qos: int) -> None:
    """An alias stands for its topic until it is set anew."""
    sub = brokers5.subscriber((brokers5.topic("#"), 2))
    pub = brokers5.publisher()
    assert pub.connack[wire5.ALIAS_MAXIMUM]
    pub.publish(brokers5.topic("a"), b"1", qos=qos, properties=[(ALIAS, 1)])
    pub.publish(brokers5.topic("b"), b"2", qos=qos, properties=[(ALIAS, 2)])
    pub.publish("", b"3", qos=qos, properties=[(ALIAS, 1), (USER_PROPERTY, ("x", "y"))])
    pub.publish("", b"4", qos=qos, properties=[(ALIAS, 2)])
    pub.publish(brokers5.topic("c"), b"5", qos=qos, properties=[(ALIAS, 1)])
    pub.publish("", b"6", qos=qos, properties=[(ALIAS, 1)])
    got = [(m.topic, m.payload) for m in sub.take(6)]
    assert got == [(brokers5.topic(t), b"%d" % n) for n, t in enumerate("abab", 1)] + [
        (brokers5.topic("c"), b"5"),
        (brokers5.topic("c"), b"6"),
    ]


@level5_statement("MQTT-3.3.2-7")
def test_aliases_end_with_the_connection(broker5: Bench5) -> None:
    """Also where the session goes on."""
    name = unique()
    pub = broker5.client(name, expiry=60)
    pub.publish(broker5.topic(), b"1", properties=[(ALIAS, 1)])
    pub.disconnect()
    pub = broker5.resume(name, expiry=60)
    pub.send(wire5.publish("", b"2", properties=[(ALIAS, 1)]))
    pub.expect_disconnect(0x82)


@level5_statement("MQTT-3.3.2-8", "MQTT-3.3.2-9")
def test_illegal_aliases(broker5: Bench5) -> None:
    """0, and one above the server's maximum: 0x94. One that was never set: 0x82."""
    most = broker5.client().connack[wire5.ALIAS_MAXIMUM]
    assert isinstance(most, int)
    for alias in (0, *([most + 1] if most < 65_535 else [])):
        pub = broker5.publisher()
        pub.send(wire5.publish(broker5.topic(), b"1", properties=[(ALIAS, alias)]))
        pub.expect_disconnect(0x94)
    pub = broker5.publisher()
    pub.send(wire5.publish("", b"1", properties=[(ALIAS, 1)]))
    pub.expect_disconnect(0x82)


@level5_statement("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11")
def test_server_sends_no_alias_unasked(brokers5: Bench5) -> None:
    """A client without topic alias maximum gets none, and one with it can read them."""
    plain = brokers5.subscriber(brokers5.topic())
    able = brokers5.subscriber(brokers5.topic(), properties=[(wire5.ALIAS_MAXIMUM, 5)])
    pub = brokers5.publisher()
    for number in range(20):
        pub.publish(brokers5.topic(), b"%d" % number)
        assert not plain.expect_publish(brokers5.topic(), b"%d" % number).properties
        able.expect_publish(brokers5.topic(), b"%d" % number)
    assert ([], [1]) == (plain.aliases, able.aliases)
    many = brokers5.subscriber(brokers5.topic("#"), properties=[(wire5.ALIAS_MAXIMUM, 2)])
    for number in range(4):
        for topic in "abc":
            pub.publish(brokers5.topic(topic), b"%d" % number, properties=ALL)
    topics = [message.topic for message in many.take(12)]
    assert [brokers5.topic(topic) for topic in "abc"] * 4 == topics
    assert [1, 2] == many.aliases


@level5_statement("MQTT-3.3.4-6", "MQTT-3.3.2-14", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    ("raw", "codes"),
    [
        (bytes([SUBSCRIPTION_ID, 1]), (0x82, 0x81)),
        (bytes([PAYLOAD_FORMAT, 2]), (0x81, 0x82)),
        (bytes([PAYLOAD_FORMAT, 0, PAYLOAD_FORMAT, 0]), (0x82, 0x81)),
        (bytes([MESSAGE_EXPIRY, 0, 0, 1]), (0x81,)),
        (bytes([RESPONSE_TOPIC, 0, 1, 0x23]), (0x82, 0x81, 0x90)),
        (bytes([wire5.SESSION_EXPIRY, 0, 0, 0, 1]), (0x81, 0x82)),
        (bytes([0x7E]), (0x81, 0x82)),
        (bytes([CONTENT_TYPE, 0, 1, 0]), (0x81, 0x82)),
    ],
    ids=["sub-id", "format-2", "twice", "cut", "wildcard", "misplaced", "unknown", "null"],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_illegal_properties(broker5: Bench5, raw: bytes, codes: tuple[int, ...], qos: int) -> None:
    """DISCONNECT with the reason, and nothing is published."""
    sub = broker5.subscriber(broker5.topic())
    pub = broker5.publisher()
    pub.send(wire5.publish(broker5.topic(), b"bad", qos=qos, packet_id=7, properties=raw))
    pub.expect_disconnect(*codes)
    broker5.silence(sub)


def test_empty_topic_without_alias(broker5: Bench5) -> None:
    """DISCONNECT 0x82."""
    pub = broker5.publisher()
    pub.send(wire5.publish("", b"1"))
    pub.expect_disconnect(0x82, 0x90, 0x81)


@level5_statement("MQTT-3.3.2-2", "MQTT-4.7.0-1")
@pytest.mark.parametrize("topic", ["a/+", "a/#", "#"])
def test_wildcards_in_a_topic(broker5: Bench5, topic: str) -> None:
    """DISCONNECT 0x90, or 0x81."""
    pub = broker5.publisher()
    pub.send(wire5.publish(topic, b"1"))
    pub.expect_disconnect(0x90, 0x81, 0x82)


@level5_statement("MQTT-4.3.2-3", "MQTT-4.3.3-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_acks_of_any_length(brokers5: Bench5, qos: int) -> None:
    """With and without reason code and properties."""
    sub = brokers5.subscriber((brokers5.topic(), 2))
    pub = brokers5.publisher()
    for tail in ((), (0,), (0, []), (0, [(wire5.REASON_STRING, "fine")]), (0x10,)):
        pub.publish(brokers5.topic(), b"1", qos=qos)
        found = sub.expect_publish(qos=qos)
        if qos == 1:
            sub.send(wire5.ack(PUBACK, found.packet_id, *tail))
        else:
            sub.send(wire5.ack(PUBREC, found.packet_id, *tail))
            sub.wait_for(PUBREL, found.packet_id)
            ends = (0x92,) if tail and tail[0] else tail
            sub.send(wire5.ack(PUBCOMP, found.packet_id, *ends))
    sub.ping()


@level5_statement("MQTT-4.4.0-2")
def test_refused_messages_end(brokers5: Bench5) -> None:
    """PUBACK and PUBREC with an error end the exchange: the window moves on."""
    sub = brokers5.client(properties=[(wire5.RECEIVE_MAXIMUM, 1)])
    sub.subscribe((brokers5.topic(), 2))
    pub = brokers5.publisher()
    for number in range(8):
        pub.publish(brokers5.topic(), b"%d" % number, qos=1 + number % 2)
    for number in range(8):
        found = sub.expect_publish(brokers5.topic(), b"%d" % number, qos=1 + number % 2)
        kind = PUBACK if found.qos == 1 else PUBREC
        sub.send(wire5.ack(kind, found.packet_id, 0x80))
    sub.ping()


@level5_statement("MQTT-3.3.4-9", "MQTT-3.3.4-10", "MQTT-4.9.0-2", "MQTT-4.9.0-3")
@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("expiry", [None, 60])
def test_receive_maximum(brokers5: Bench5, most: int, expiry: int | None) -> None:
    """Never more than that unacknowledged; all come in the end."""
    sub = brokers5.client(expiry=expiry, properties=[(wire5.RECEIVE_MAXIMUM, most)])
    sub.subscribe((brokers5.topic(), 2))
    pub = brokers5.publisher()
    for number in range(12):
        pub.publish(brokers5.topic(), b"%d" % number, qos=1 + number % 2)
    got: list[int] = []
    while len(got) < 12:
        batch = [sub.expect_publish() for _ in range(min(most, 12 - len(got)))]
        sub.ping()
        for found in batch:
            got.append(int(found.payload))
            sub.acknowledge(found)
    assert got == list(range(12))


@level5_statement("MQTT-3.3.4-9", "MQTT-4.4.0-1", "MQTT-3.3.1-1")
def test_receive_maximum_of_a_session_that_returns(brokers5: Bench5) -> None:
    """Also where more is in flight from before."""
    name = unique()
    sub = brokers5.client(name, expiry=60)
    sub.subscribe((brokers5.topic(), 1))
    pub = brokers5.publisher()
    for number in range(10):
        pub.publish(brokers5.topic(), b"%d" % number, qos=1)
    for _ in range(10):
        sub.expect_publish()
    sub.drop()
    sub = brokers5.resume(name, expiry=60, properties=[(wire5.RECEIVE_MAXIMUM, 2)])
    for number in range(0, 10, 2):
        found = [sub.expect_publish(payload=b"%d" % n, dup=True) for n in (number, number + 1)]
        sub.ping()
        for one in found:
            sub.acknowledge(one)
    sub.ping()


@level5_statement("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry", [None, 60])
def test_maximum_packet_size(brokers5: Bench5, qos: int, expiry: int | None) -> None:
    """What is too large is dropped for that client alone, and counts as delivered."""
    small = brokers5.client(expiry=expiry, properties=[(wire5.MAXIMUM_PACKET, 200)])
    large = brokers5.subscriber((brokers5.topic(), 2))
    small.subscribe((brokers5.topic(), 2))
    pub = brokers5.publisher()
    for number in range(6):
        payload = b"%d" % number + b"x" * (300 if number % 2 else 0)
        pub.publish(brokers5.topic(), payload, qos=qos)
    assert [m.payload[:1] for m in large.take(6)] == [b"%d" % n for n in range(6)]
    assert [m.payload for m in small.take(3)] == [b"0", b"2", b"4"]
    small.ping()


@level5_statement("MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_expired_messages_are_not_delivered(brokers5: Bench5) -> None:
    """Those in a session and those that are retained; the others come with what is left."""
    name = unique()
    sub = brokers5.client(name, expiry=60)
    sub.subscribe((brokers5.topic("#"), 1))
    sub.disconnect()
    pub = brokers5.publisher()
    for topic, expiry in (("short", 1), ("long", 60)):
        pub.publish(
            brokers5.topic(topic), b"1", qos=1, retain=True, properties=[(MESSAGE_EXPIRY, expiry)]
        )
    time.sleep(2.5)
    sub = brokers5.resume(name, expiry=60)
    late = brokers5.subscriber((brokers5.topic("#"), 1))
    for client in (sub, late):
        found = client.expect_publish(brokers5.topic("long"), b"1")
        left = wire5.first(found.properties, MESSAGE_EXPIRY)
        assert isinstance(left, int) and 50 <= left <= 58, found
        client.acknowledge(found)
    pub.publish(brokers5.topic("end"), b"2", qos=1)
    for client in (sub, late):
        client.acknowledge(client.expect_publish(brokers5.topic("end"), b"2"))
    pub.publish(brokers5.topic("long"), b"", retain=True, qos=1)


@level5_statement("MQTT-3.3.2-6")
def test_expiry_of_a_live_message(brokers5: Bench5) -> None:
    """It comes with its interval."""
    sub = brokers5.subscriber((brokers5.topic(), 1))
    for qos in (0, 1):
        brokers5.publisher().publish(
            brokers5.topic(), b"1", qos=qos, properties=[(MESSAGE_EXPIRY, 1000)]
        )
        found = sub.expect_publish(brokers5.topic(), b"1")
        left = wire5.first(found.properties, MESSAGE_EXPIRY)
        assert isinstance(left, int) and 990 <= left <= 1000
        sub.acknowledge(found)
