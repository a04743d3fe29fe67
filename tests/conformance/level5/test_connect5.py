"""CONNECT and CONNACK of level 5 (sections 3.1 and 3.2)."""

from __future__ import annotations

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.wire import CONNACK, DISCONNECT, PINGRESP, PUBACK, SUBACK
from tests.support.wire5 import (
    ALIAS,
    ALIAS_MAXIMUM,
    ASSIGNED_ID,
    AUTH_DATA,
    AUTH_METHOD,
    MAXIMUM_PACKET,
    PROBLEM_INFO,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    RESPONSE_INFO_WANTED,
    SESSION_EXPIRY,
    USER_PROPERTY,
    WILL_DELAY,
)

from .harness import Bench5


@level5_statement("MQTT-3.1.4-5", "MQTT-3.2.0-1", "MQTT-3.2.2-1", "MQTT-3.2.2-2", "MQTT-3.2.2-8")
def test_client_is_accepted(broker5: Bench5) -> None:
    """CONNACK 0 without a session; nothing that works is declared unavailable."""
    connack = broker5.client().connack
    assert not connack.present
    for name in (wire5.MAXIMUM_QOS, wire5.RETAIN_AVAILABLE, wire5.WILDCARD_AVAILABLE):
        assert name not in connack or connack[name] == 1


@level5_statement("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
def test_server_assigns_a_client_id(broker5: Bench5) -> None:
    """A unique id for an empty one, whatever clean start says, and only then."""
    first, second = broker5.open(), broker5.open()
    one = first.connect("")[ASSIGNED_ID]
    other = second.connect("", clean=False)[ASSIGNED_ID]
    assert one and other and one != other
    assert ASSIGNED_ID not in broker5.client().connack


@level5_statement("MQTT-3.1.3-2", "MQTT-3.1.3-7")
def test_assigned_id_names_the_session(broker5: Bench5) -> None:
    """The session of an assigned id can be resumed by it."""
    client = broker5.open()
    name = client.connect("", expiry=60)[ASSIGNED_ID]
    assert isinstance(name, str)
    client.disconnect()
    broker5.resume(name, expiry=60)


@level5_statement("MQTT-3.1.2-2")
@pytest.mark.parametrize("level", [0, 2, 6, 127, 0x85, 255])
def test_other_level_is_refused(broker5: Bench5, level: int) -> None:
    """A later level gets CONNACK 0x84; an earlier one, or a bridge's, the CONNACK of 3.1.1."""
    for will in (None, broker5.will()):
        client = broker5.open()
        client.send(wire5.connect("x", level=level, will=will))
        told = client.read_to_the_end()
        is_later = 5 < level < 0x80
        assert told == (b"\x20\x03\x00\x84\x00" if is_later else b"\x20\x02\x00\x01"), told


@level5_statement("MQTT-3.1.2-1")
def test_other_protocol_is_refused(broker5: Bench5) -> None:
    """CONNACK 0x84 reveals the server to a client of level 5."""
    client = broker5.open()
    client.send(wire5.connect("x", name="MQTX"))
    assert REASON_STRING in client.expect_refused(0x84)


@level5_statement("MQTT-2.1.3-1", "MQTT-3.1.4-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_flags_of_connect(broker5: Bench5, flags: int) -> None:
    """Flags in the first byte: CONNACK 0x81."""
    data = bytearray(wire5.connect("x"))
    data[0] |= flags
    client = broker5.open()
    client.send(bytes(data))
    client.expect_refused(0x81)


@level5_statement("MQTT-3.1.4-1", "MQTT-1.5.5-1")
@pytest.mark.parametrize("listed", [b"", b"\x40", b"\x80\x00", b"\xff\xff\xff\xff\x01"])
def test_property_list_that_cannot_be_read(broker5: Bench5, listed: bytes) -> None:
    """CONNACK 0x81 with its reason, unless bytes of the list may set a limit."""
    for rest, is_told in ((b"\0\0", True), (bytes([MAXIMUM_PACKET, 0, 0, 0, 5]), False)):
        body = b"\0\4MQTT\5\2\0\0" + listed + rest
        client = broker5.open()
        client.send(bytes([0x10, len(body)]) + body)
        found = client.expect_refused(0x81)
        assert (REASON_STRING in found) == is_told or not listed


@level5_statement("MQTT-3.1.4-1", "MQTT-3.2.2-6", "MQTT-3.2.2-7", "MQTT-4.13.2-1")
@pytest.mark.parametrize(
    "properties",
    [
        [(SESSION_EXPIRY, 1), (SESSION_EXPIRY, 1)],
        [(RECEIVE_MAXIMUM, 1), (RECEIVE_MAXIMUM, 1)],
        [(MAXIMUM_PACKET, 100), (MAXIMUM_PACKET, 100)],
        [(ALIAS_MAXIMUM, 1), (ALIAS_MAXIMUM, 1)],
        [(RESPONSE_INFO_WANTED, 1), (RESPONSE_INFO_WANTED, 1)],
        [(PROBLEM_INFO, 1), (PROBLEM_INFO, 1)],
        [(RECEIVE_MAXIMUM, 0)],
        [(MAXIMUM_PACKET, 0)],
        [(RESPONSE_INFO_WANTED, 2)],
        [(PROBLEM_INFO, 2)],
        [(AUTH_DATA, b"x")],
    ],
    ids=lambda given: "-".join(str(pair) for pair in given),
)
def test_protocol_errors_in_properties(
    broker5: Bench5, properties: list[tuple[int, wire5.Value]]
) -> None:
    """Repeated properties, and values out of range: 0x82, or 0x81."""
    client = broker5.open()
    client.send(wire5.connect(unique("c"), properties=properties))
    client.expect_refused(0x82, 0x81)


@level5_statement("MQTT-1.5.4-1", "MQTT-1.5.7-1", "MQTT-3.1.4-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "raw",
    [
        bytes([SESSION_EXPIRY, 0, 0, 0]),
        bytes([0x7F, 0]),
        bytes([0x80]),
        bytes([wire5.ALIAS, 0, 1]),
        bytes([WILL_DELAY, 0, 0, 0, 1]),
        bytes([USER_PROPERTY, 0, 1, 0x61, 0, 5]),
        bytes([USER_PROPERTY, 0, 1, 0xFF, 0, 0]),
    ],
    ids=["cut", "unknown", "cut-identifier", "alias", "will-delay", "cut-pair", "no-utf8"],
)
def test_malformed_properties(broker5: Bench5, raw: bytes) -> None:
    """Cut, unknown and misplaced properties: 0x81, or 0x82."""
    client = broker5.open()
    client.send(wire5.connect(unique("c"), properties=raw))
    client.expect_refused(0x81, 0x82)


@level5_statement("MQTT-4.12.0-1", "MQTT-4.12.0-4", "MQTT-3.1.4-2")
def test_authentication_method_is_refused(broker5: Bench5) -> None:
    """No method is known: 0x8C."""
    client = broker5.open()
    client.send(wire5.connect(unique("c"), properties=[(AUTH_METHOD, "SCRAM-SHA-256")]))
    client.expect_refused(0x8C)


@level5_statement("MQTT-4.12.0-4", "MQTT-3.1.2-30", "MQTT-3.1.4-6")
@pytest.mark.parametrize("behind", ["publish", "subscribe", "ping", "auth", "connect"])
def test_nothing_before_authentication(broker5: Bench5, behind: str) -> None:
    """What follows a CONNECT with a method is not processed: the refusal is all that comes."""
    sub = broker5.subscriber((broker5.topic(), 1))
    packets = {
        "publish": wire5.publish(broker5.topic(), b"1", qos=1, packet_id=1),
        "subscribe": wire5.subscribe(1, (broker5.topic(), 1)),
        "ping": b"\xc0\0",
        "auth": wire5.auth(0x18, [(AUTH_METHOD, "SCRAM-SHA-256"), (AUTH_DATA, b"x")]),
        "connect": wire5.connect(unique("c")),
    }
    client = broker5.open()
    method: wire5.Properties = [(AUTH_METHOD, "SCRAM-SHA-256"), (AUTH_DATA, b"x")]
    client.send(wire5.connect(unique("c"), properties=method), packets[behind])
    client.expect_refused(0x8C)
    broker5.silence(sub)


@level5_statement("MQTT-3.1.4-6")
@pytest.mark.parametrize("fault", ["property", "will"])
def test_nothing_after_a_refusal(broker5: Bench5, fault: str) -> None:
    """What follows a CONNECT that is refused is not processed, and its will is not published."""
    sub = broker5.subscriber((broker5.topic("#"), 1))
    connects = {
        "property": wire5.connect(unique("c"), properties=[(PROBLEM_INFO, 2)]),
        "will": wire5.connect(
            unique("c"), will=broker5.will(), properties=[(AUTH_METHOD, "SCRAM-SHA-256")]
        ),
    }
    client = broker5.open()
    client.send(connects[fault], wire5.publish(broker5.topic(), b"1", qos=1, packet_id=1))
    client.expect_refused(0x8C, 0x82)
    broker5.silence(sub)


@level5_statement("MQTT-4.12.0-6")
def test_client_without_method_gets_none(broker5: Bench5) -> None:
    """CONNACK is the first packet, and names no method."""
    client = broker5.client(username="somebody", password=b"secret")
    assert AUTH_METHOD not in client.connack and AUTH_DATA not in client.connack
    client.ping()


@level5_statement("MQTT-3.1.3-5")
@pytest.mark.parametrize("size", [1, 23])
def test_ordinary_client_ids(broker5: Bench5, size: int) -> None:
    """Letters and digits, 1 to 23 of them, are a client id of their own."""
    for name in ("0aZ9bY8cX7dW6eV5fU4gT3h"[:size], "Qq0Rr1Ss2Tt3Uu4Vv5Ww6Xx"[:size]):
        client = broker5.client(name)
        assert ASSIGNED_ID not in client.connack
        client.disconnect()


@level5_statement("MQTT-3.1.3-8")
def test_rejected_client_id(broker5: Bench5) -> None:
    """One that is longer than the server allows: CONNACK 0x85, and closed."""
    client = broker5.open()
    client.send(wire5.connect("c" * 60_000))
    client.expect_refused(0x85)


@level5_statement("MQTT-3.12.4-1")
def test_ping_is_answered(broker5: Bench5) -> None:
    """Each PINGREQ, in order with other answers."""
    client = broker5.client()
    client.send(b"\xc0\0" * 3, wire5.subscribe(5, ("a", 0)), b"\xc0\0")
    for _ in range(3):
        client.expect(PINGRESP)
    client.expect(SUBACK, 5)
    client.expect(PINGRESP)


@level5_statement("MQTT-4.2.0-1")
def test_packets_in_single_bytes(broker5: Bench5) -> None:
    """A stream has no packet borders: everything arrives byte by byte, or all at once."""
    packets = (
        wire5.connect(unique("c"), properties=[(USER_PROPERTY, ("a", "b"))]),
        wire5.subscribe(7, (broker5.topic(), 2)),
        wire5.publish(broker5.topic(), b"1", qos=1, packet_id=3, properties=[(ALIAS, 1)]),
        wire5.publish("", b"2", qos=1, packet_id=4, properties=[(ALIAS, 1)]),
    )
    for size in (1, 1000):
        data = b"".join(packets)
        client = broker5.open()
        for start in range(0, len(data), size):
            client.send(data[start : start + size])
        assert client.expect(CONNACK).code == 0
        client.expect(SUBACK, 7)
        for kind in (3, 4):
            client.wait_for(PUBACK, kind)
        assert [message.payload for message in client.take(2)] == [b"1", b"2"]


@level5_statement("MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-3.14.2-2")
def test_nothing_after_disconnect(broker5: Bench5) -> None:
    """The DISCONNECT is the last that a client gets, although messages are on their way."""
    client = broker5.client(expiry=60)
    client.subscribe((broker5.topic(), 1))
    pub = broker5.publisher()
    for number in range(50):
        pub.publish(broker5.topic(), b"%d" % number, qos=1)
    client.send(wire5.publish("", b"1"))
    for number in range(50):
        pub.publish(broker5.topic(), b"%d" % number, qos=1)
    while isinstance(found := client.receive(), wire5.Publish):
        pass
    assert found.kind == DISCONNECT and found.code == 0x82
    assert SESSION_EXPIRY not in found
    client.expect_closed()


@level5_statement("MQTT-4.12.0-7", "MQTT-4.12.1-1", "MQTT-4.12.1-2")
def test_auth_without_method_is_an_error(broker5: Bench5) -> None:
    """AUTH on a connection without authentication method: DISCONNECT 0x82."""
    client = broker5.client()
    client.send(wire5.auth(0x19, [(AUTH_METHOD, "x")]))
    client.expect_disconnect(0x82)


@level5_statement("MQTT-4.12.0-3")
@pytest.mark.parametrize("code", [0x00, 0x18])
def test_auth_with_other_codes_is_an_error(broker5: Bench5, code: int) -> None:
    """The same for the other reason codes."""
    client = broker5.client()
    client.send(wire5.auth(code, [(AUTH_METHOD, "x")]))
    client.expect_disconnect(0x82)


@level5_statement("MQTT-3.1.0-2", "MQTT-3.2.0-2")
def test_second_connect_is_an_error(broker5: Bench5) -> None:
    """DISCONNECT 0x82."""
    client = broker5.client()
    client.send(wire5.connect(unique("c")))
    client.expect_disconnect(0x82)


@level5_statement("MQTT-3.1.0-1", "MQTT-3.14.0-1")
def test_first_packet_is_connect(broker5: Bench5) -> None:
    """Anything else closes the connection, without a packet."""
    client = broker5.open()
    client.send(wire5.publish("x"))
    client.expect_closed()


@level5_statement(
    "MQTT-3.1.2-3",
    "MQTT-3.1.2-11",
    "MQTT-3.1.2-13",
    "MQTT-3.1.2-16",
    "MQTT-3.1.2-18",
)
@pytest.mark.parametrize(
    "spoiled",
    [
        {"set_flags": 0x01},
        {"set_flags": 0x08},
        {"set_flags": 0x20},
        {"set_flags": 0x80},
        {"set_flags": 0x40},
        {"tail": b"x"},
    ],
    ids=lambda given: str(given),
)
def test_malformed_connects(broker5: Bench5, spoiled: dict[str, object]) -> None:
    """A reserved flag, and fields that the flags do not announce."""
    client = broker5.open()
    client.send(wire5.connect(unique("c"), **spoiled))  # type: ignore[arg-type]
    client.expect_refused(0x81)


@level5_statement("MQTT-3.1.2-19")
def test_password_needs_no_user_name(broker5: Bench5) -> None:
    """Unlike with MQTT 3.1.1."""
    broker5.client(password=b"secret")


@level5_statement("MQTT-3.1.4-3")
def test_takeover_is_told(broker5: Bench5) -> None:
    """DISCONNECT 0x8E to the earlier connection."""
    first = broker5.client(unique("c"))
    broker5.client(first.client_id)
    first.expect_disconnect(0x8E)


@level5_statement("MQTT-3.1.2-22", "MQTT-3.2.2-22")
def test_keep_alive_is_told(broker5: Bench5) -> None:
    """DISCONNECT 0x8D after one and a half times the keep-alive."""
    client = broker5.client(keep_alive=1)
    client.expect_disconnect(0x8D)


def test_user_properties_are_accepted(broker5: Bench5) -> None:
    """Any number, repeated names included."""
    pairs: wire5.Properties = [(USER_PROPERTY, ("a", str(n % 3))) for n in range(50)]
    broker5.client(properties=pairs)


def test_levels_side_by_side(brokers5: Bench5) -> None:
    """A client of 3.1.1 and one of 5.0 hear each other."""
    older, newer = brokers5.older(), brokers5.subscriber(brokers5.topic("#"))
    older.subscribe(brokers5.topic("#"))
    pub, old_pub = brokers5.publisher(), brokers5.older(brokers5.pub)
    for qos in (0, 1, 2):
        pub.publish(
            brokers5.topic("5"), b"%d" % qos, qos=qos, properties=[(USER_PROPERTY, ("a", "b"))]
        )
        found = older.expect_publish(brokers5.topic("5"), b"%d" % qos)
        older.acknowledge(found)
        newer.expect_publish(
            brokers5.topic("5"), b"%d" % qos, properties=[(USER_PROPERTY, ("a", "b"))]
        )
        old_pub.publish(brokers5.topic("4"), b"%d" % qos, qos=qos)
        older.acknowledge(older.expect_publish(brokers5.topic("4"), b"%d" % qos))
        newer.expect_publish(brokers5.topic("4"), b"%d" % qos, properties=[])
