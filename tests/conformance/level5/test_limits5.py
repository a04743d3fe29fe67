"""What a client limits: sizes of packets, explanations; and what a server does (3.1.2, 3.2.2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.rawclient import Address
from tests.support.rawclient5 import RawClient5
from tests.support.wire import CONNACK, DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL
from tests.support.wire5 import (
    ALIAS,
    ALIAS_MAXIMUM,
    AUTH_METHOD,
    MAXIMUM_PACKET,
    PROBLEM_INFO,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    RESPONSE_INFO,
    RESPONSE_INFO_WANTED,
    USER_PROPERTY,
)

from .harness import Bench5

SMALL = 40
"""Bytes that have room for an ordinary CONNACK, and for no reason string."""

LARGEST_CONNECT = 327_749
"""Bytes of a CONNECT, as docs/mqtt5.md has them."""


def refused_at(broker5: Bench5, **fields: object) -> bytes:
    """All that a client gets whose CONNECT with these fields is refused."""
    client = broker5.open()
    client.send(wire5.connect(unique("c"), **fields))  # type: ignore[arg-type]
    return client.read_to_the_end()


@level5_statement("MQTT-3.2.2-19", "MQTT-3.2.2-20", "MQTT-3.1.2-24")
@pytest.mark.parametrize("most", [5, 20, SMALL])
def test_refusal_fits(broker5: Bench5, most: int) -> None:
    """CONNACK leaves its reason string out where the client has no room for it."""
    method = (AUTH_METHOD, "SCRAM-SHA-256")
    data = refused_at(broker5, properties=[method, (MAXIMUM_PACKET, most)])
    assert data == b"\x20\x03\x00\x8c\x00"
    data = refused_at(broker5, properties=[method, (MAXIMUM_PACKET, 1000)])
    assert data[3] == 0x8C and len(data) > SMALL


@level5_statement("MQTT-3.1.2-24")
@pytest.mark.parametrize(("most", "expected"), [(4, b""), (5, b"\x20\x03\x00\x95\x00")])
def test_no_room_for_connack(broker5: Bench5, most: int, expected: bytes) -> None:
    """A client that takes no CONNACK gets 0x95, or nothing; it has no session, and no will."""
    name = unique("c")
    sub = broker5.subscriber((broker5.topic("will"), 1))
    for expiry in (0, 60):
        client = broker5.open()
        limited: wire5.Properties = [(MAXIMUM_PACKET, most)]
        data = wire5.connect(name, expiry=expiry, will=broker5.will(), properties=limited)
        client.send(data, wire5.publish(broker5.topic("will"), b"1"))
        assert client.read_to_the_end() == expected
        again = broker5.client(name, clean=expiry > 0)
        assert not again.connack.present
        again.disconnect()
    broker5.silence(sub)


@level5_statement("MQTT-3.1.2-24", "MQTT-3.2.2-19")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"raw": b"\x01\x00"}, 0x81),
        ({"raw": b"\x7f\x00"}, 0x81),
        ({"raw": b"\x21\x00\x00"}, 0x82),
        ({"raw": b"\x26\x00\x01\xff\x00\x00"}, 0x81),
        ({"raw": b"", "set_flags": 0x01}, 0x81),
        ({"raw": b"", "set_flags": 0x40}, 0x81),
        ({"raw": b"", "client_id": b"\xff"}, 0x81),
        ({"raw": b"", "level": 6}, 0x84),
    ],
    ids=lambda given: str(given),
)
@pytest.mark.parametrize("is_first", [True, False])
def test_refusal_of_an_illegal_connect_fits(
    broker5: Bench5, fields: dict[str, Any], code: int, is_first: bool
) -> None:
    """Its maximum packet size counts, before and behind what is illegal."""
    rest = {name: value for name, value in fields.items() if name != "raw"}
    for most, is_told in ((5, False), (20, False), (1000, code != 0x84)):
        limit = bytes([MAXIMUM_PACKET]) + most.to_bytes(4)
        raw = limit + fields["raw"] if is_first else fields["raw"] + limit
        client = broker5.open()
        client.send(wire5.connect(**{"client_id": unique(), "properties": raw, **rest}))
        data = client.read_to_the_end()
        assert data[3] == code
        is_cut = not is_first and fields["raw"][:1] in (b"\x7f", b"\x26")
        assert (len(data) > 5) == (is_told and not is_cut), data
    client = broker5.open()
    client.send(wire5.connect(unique(), properties=bytes([MAXIMUM_PACKET]) + bytes(3) + b"\4\1\0"))
    assert client.read_to_the_end() == b""


@level5_statement("MQTT-3.2.2-15", "MQTT-3.1.4-2")
def test_connect_above_the_maximum(broker5: Bench5) -> None:
    """CONNACK 0x95 as soon as the length of the CONNECT is known."""
    for most in (0, 5):
        pairs: wire5.Properties = [(MAXIMUM_PACKET, most)] if most else []
        pairs += [(USER_PROPERTY, ("a", "x" * 60_000)) for _ in range(10)]
        client = broker5.open()
        client.send(wire5.connect(unique(), properties=pairs)[:100])
        data = client.read_to_the_end()
        assert data[:1] == b"\x20" and data[3] == 0x95
        assert len(data) == 5


def test_longest_connect(broker5: Bench5) -> None:
    """A CONNECT has a limit of its own, which its properties count to; one byte more gets 0x95."""
    bare = len(wire5.connect(name := unique(), properties=longest_list(0)))
    for more, code in ((0, 0), (1, 0x95)):
        packet = wire5.connect(name, properties=longest_list(LARGEST_CONNECT - bare + more))
        assert len(packet) == LARGEST_CONNECT + more
        client = broker5.open()
        client.send(packet)
        connack = client.receive()
        assert isinstance(connack, wire5.Answer) and connack.code == code


def longest_list(more: int) -> wire5.Properties:
    """User properties of seven times 40,000 bytes, and so many more."""
    values = [40_000] * 5 + [40_000 + more // 2, 40_000 + more - more // 2]
    return [(USER_PROPERTY, ("a", "x" * size)) for size in values]


@level5_statement("MQTT-3.14.2-3", "MQTT-3.14.2-4", "MQTT-3.14.2-2")
def test_disconnect_fits(broker5: Bench5) -> None:
    """DISCONNECT leaves its reason string out where it has no room; it never has an expiry."""
    for most, is_told in ((SMALL, False), (1000, True)):
        client = broker5.client(expiry=1, properties=[(MAXIMUM_PACKET, most)])
        client.send(wire5.publish("", b"1"))
        found = client.expect_disconnect(0x82)
        assert (REASON_STRING in found) == is_told
        assert wire5.SESSION_EXPIRY not in found


@level5_statement("MQTT-3.9.2-1", "MQTT-3.9.2-2", "MQTT-3.11.2-1", "MQTT-3.11.2-2")
def test_answer_that_has_no_room(broker5: Bench5) -> None:
    """SUBACK and UNSUBACK are never larger than the client allows: DISCONNECT 0x95 before that."""
    for request in (
        wire5.subscribe(7, *((broker5.topic(f"{n}"), 0) for n in range(100))),
        wire5.unsubscribe(7, *(broker5.topic(f"{n}") for n in range(100))),
    ):
        client = broker5.client(properties=[(MAXIMUM_PACKET, SMALL)])
        few = wire5.subscribe(6, *((broker5.topic(f"{n}"), 0) for n in range(30)))
        client.send(few)
        assert len(client.expect(9, 6).codes) == 30
        client.send(request)
        client.expect_disconnect(0x95)


@level5_statement(
    "MQTT-3.4.2-2",
    "MQTT-3.4.2-3",
    "MQTT-3.5.2-2",
    "MQTT-3.5.2-3",
    "MQTT-3.6.2-2",
    "MQTT-3.6.2-3",
    "MQTT-3.7.2-2",
    "MQTT-3.7.2-3",
    "MQTT-3.1.2-29",
)
@pytest.mark.parametrize(
    "properties", [[(MAXIMUM_PACKET, SMALL)], [(PROBLEM_INFO, 0)]], ids=["small", "brief"]
)
def test_acks_have_no_explanation(brokers5: Bench5, properties: wire5.Properties) -> None:
    """For a client without room, or that asked for none."""
    client = brokers5.client(at=brokers5.pub, properties=properties)
    other = brokers5.publisher()
    client.subscribe((brokers5.topic(), 2))
    found = client.publish(brokers5.topic("nobody"), b"1", qos=1)
    assert found is not None and not found.properties
    client.send(wire5.publish(brokers5.topic("nobody"), b"1", qos=2, packet_id=999))
    assert not client.wait_for(PUBREC, 999).properties
    for _ in range(2):
        client.send(wire5.ack(PUBREL, 999))
        assert not client.wait_for(PUBCOMP, 999).properties
    other.publish(brokers5.topic(), b"2", qos=2)
    found = client.expect_publish(payload=b"2")
    client.send(wire5.ack(PUBREC, found.packet_id))
    assert not client.wait_for(PUBREL, found.packet_id).properties
    client.send(wire5.ack(PUBCOMP, found.packet_id))
    assert not client.ask_subscribe("other").properties
    assert not client.unsubscribe("other").properties
    client.ping()


@level5_statement("MQTT-3.1.2-29")
def test_refusals_may_explain(broker5: Bench5) -> None:
    """CONNACK and DISCONNECT have their reason string without problem information, too."""
    brief = [(PROBLEM_INFO, 0)]
    client = broker5.open()
    client.send(wire5.connect(unique(), properties=[*brief, (AUTH_METHOD, "x")]))
    assert REASON_STRING in client.expect(CONNACK)
    client = broker5.client(properties=brief)
    client.send(wire5.publish("", b"1"))
    assert REASON_STRING in client.expect(DISCONNECT)


@level5_statement("MQTT-3.1.2-29")
def test_user_properties_of_messages_come(brokers5: Bench5) -> None:
    """A client without problem information gets those of PUBLISH."""
    pair: wire5.Properties = [(USER_PROPERTY, ("a", "b"))]
    sub = brokers5.subscriber(brokers5.topic(), properties=[(PROBLEM_INFO, 0)])
    brokers5.publisher().publish(brokers5.topic(), b"1", properties=pair)
    sub.expect_publish(payload=b"1", properties=pair)


@level5_statement("MQTT-3.1.2-28")
@pytest.mark.parametrize("asked", [[], [(RESPONSE_INFO_WANTED, 0)], [(RESPONSE_INFO_WANTED, 1)]])
def test_response_information(broker5: Bench5, asked: wire5.Properties) -> None:
    """None is sent, asked for or not."""
    assert RESPONSE_INFO not in broker5.client(properties=asked).connack


@level5_statement("MQTT-3.2.2-15")
def test_packet_above_the_maximum(broker5: Bench5) -> None:
    """DISCONNECT 0x95 as soon as the length is known; the largest packet passes."""
    pub = broker5.publisher()
    most = pub.connack[MAXIMUM_PACKET]
    assert isinstance(most, int)
    sub = broker5.subscriber(broker5.topic())
    frame = len(wire5.publish(broker5.topic(), b"x" * 3_000_000)) - 3_000_000
    pub.publish(broker5.topic(), b"x" * (most - frame), qos=0)
    assert len(sub.expect_publish().payload) == most - frame
    body = most - 5 + 1
    size = bytes((body & 127 | 128, body >> 7 & 127 | 128, body >> 14 & 127 | 128, body >> 21))
    pub.send(b"\x30" + size)
    pub.expect_disconnect(0x95)


def acknowledged(client: RawClient5) -> None:
    """The client is served: it gets an answer to a QoS 1 publish."""
    client.send(wire5.publish("served", b"", qos=1, packet_id=1))
    client.expect(PUBACK, 1)


@level5_statement("MQTT-1.5.5-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "packet",
    [
        b"\xc0\x80\x00",
        b"\x30\x85\x00" + b"\0\1a\0x",
        b"\x32\x86\x80\x00" + b"\0\1a\0\7\0",
        b"\x40\x82\x00" + b"\0\7",
        b"\x82\x87\x00" + b"\0\7\0\0\1a\0",
        b"\x30\x06" + b"\0\1a\x80\0x",
        b"\x82\x0a" + b"\0\7\x03\x0b\x81\x00\0\1a\0",
    ],
    ids=["ping", "publish", "qos-1", "puback", "subscribe", "property-length", "subscription-id"],
)
def test_padded_lengths(broker5: Bench5, packet: bytes) -> None:
    """More bytes than the value needs are malformed: 0x81, at the end of other packets, too."""
    for before in (b"", wire5.publish(broker5.topic(), b"x")):
        client = broker5.client()
        client.send(before, packet)
        client.expect_disconnect(0x81)
    older = broker5.older()
    older.send(b"\xc0\x80\x00")
    older.expect(13)
    acknowledged(broker5.client())


@level5_statement("MQTT-1.5.5-1")
def test_padded_length_of_connect(broker5: Bench5) -> None:
    """CONNACK 0x81."""
    client = broker5.open()
    data = wire5.connect(unique("c"))
    client.send(data[:1] + bytes((data[1] | 128, 0)) + data[2:])
    client.expect_refused(0x81)


@level5_statement("MQTT-3.2.2-17", "MQTT-3.3.2-9", "MQTT-3.3.2-12")
def test_server_with_one_alias(strict5: Address) -> None:
    """It takes that, and refuses the next with 0x94."""
    with RawClient5(strict5) as client:
        assert client.connect(unique("c"))[ALIAS_MAXIMUM] == 1
        client.publish("a", b"1", qos=1, properties=[(ALIAS, 1)])
        client.publish("", b"2", qos=1, properties=[(ALIAS, 1)])
        client.send(wire5.publish("a", b"3", properties=[(ALIAS, 2)]))
        client.expect_disconnect(0x94)


@level5_statement("MQTT-3.3.4-7")
@pytest.mark.parametrize("expiry", [None, 60])
def test_no_identifier_is_left(broker5: Bench5, expiry: int | None) -> None:
    """The default maximum is the number of identifiers: with all open, one more gets 0x93."""
    client = broker5.client(expiry=expiry)
    assert RECEIVE_MAXIMUM not in client.connack
    for start in range(1, 65_536, 4_369):
        ids = range(start, start + 4_369)
        client.send(*(wire5.publish("a", qos=2, packet_id=packet_id) for packet_id in ids))
        for packet_id in ids:
            client.expect(PUBREC, packet_id)
    client.send(wire5.publish("a", qos=2, packet_id=7, dup=True))
    client.expect(PUBREC, 7)
    client.send(wire5.publish("a", qos=2, packet_id=7))
    client.expect_disconnect(0x93)


@level5_statement("MQTT-3.3.4-7")
@pytest.mark.parametrize("expiry", [None, 60])
def test_receive_maximum_of_the_server(strict5: Address, expiry: int | None) -> None:
    """As many open publishes pass as CONNACK says; one more gets DISCONNECT 0x93."""
    name = unique("c")
    with RawClient5(strict5) as client:
        assert client.connect(name, expiry=expiry)[RECEIVE_MAXIMUM] == 3
        for packet_id in range(1, 41):
            client.send(wire5.publish("a", b"1", qos=2, packet_id=packet_id))
            assert client.expect(PUBREC, packet_id).code in (0, 0x10)
            if packet_id > 2:
                client.send(wire5.ack(PUBREL, packet_id - 2))
                client.expect(PUBCOMP, packet_id - 2)
        client.publish("a", b"1", qos=1)
        client.send(wire5.publish("a", b"1", qos=2, packet_id=98))
        client.expect(PUBREC, 98)
        client.send(wire5.publish("a", b"1", qos=2, packet_id=99))
        client.expect_disconnect(0x93)
    with RawClient5(strict5) as client:
        client.connect(name)
        client.disconnect()


@level5_statement("MQTT-3.3.4-7")
def test_receive_maximum_counts_a_connection(strict5: Address) -> None:
    """What an earlier connection left open counts once it is sent again, and not before."""
    name = unique("c")
    with RawClient5(strict5) as client:
        client.connect(name, expiry=60)
        for packet_id in (1, 2, 3):
            client.send(wire5.publish("a", b"1", qos=2, packet_id=packet_id))
            client.expect(PUBREC, packet_id)
        client.drop()
    with RawClient5(strict5) as client:
        assert client.connect(name, clean=False, expiry=60).present
        for packet_id, dup in ((4, False), (5, False), (1, True), (2, True)):
            client.send(wire5.publish("a", b"1", qos=2, packet_id=packet_id, dup=dup))
            client.expect(PUBREC, packet_id)
            if packet_id == 4:
                client.send(wire5.ack(PUBREL, 4))
                client.expect(PUBCOMP, 4)
        client.send(wire5.publish("a", b"1", qos=2, packet_id=6))
        client.expect_disconnect(0x93)
    with RawClient5(strict5) as client:
        client.connect(name)
        client.disconnect()


@level5_statement("MQTT-3.1.2-24", "MQTT-3.1.2-25")
@pytest.mark.parametrize("expiry", [None, 60])
def test_retained_message_that_is_too_large(brokers5: Bench5, expiry: int | None) -> None:
    """It does not come, and the others come: properties count, too."""
    pub = brokers5.publisher()
    long: wire5.Properties = [(USER_PROPERTY, ("k", "v" * 300))]
    pub.publish(brokers5.topic("a"), b"x" * 300, qos=1, retain=True)
    pub.publish(brokers5.topic("b"), b"1", qos=1, retain=True, properties=long)
    pub.publish(brokers5.topic("c"), b"2", qos=1, retain=True)
    for qos in (0, 1, 2):
        sub = brokers5.client(unique(), expiry=expiry, properties=[(MAXIMUM_PACKET, 200)])
        sub.subscribe((brokers5.topic("+"), qos))
        sub.acknowledge(sub.expect_publish(brokers5.topic("c"), b"2", retain=True))
        sub.ping()
    for text in "abc":
        pub.publish(brokers5.topic(text), b"", qos=1, retain=True)
