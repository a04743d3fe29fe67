"""
CONNECT and CONNACK: what is accepted, what gets a return code, what just closes (3.1, 3.2).
"""

from __future__ import annotations

import string

import pytest

from tests.support import wire
from tests.support.rawclient import RawClient
from tests.support.wire import CONNACK, PUBACK, PUBREC, Will

from .harness import Bench, unique
from .statements import statement

ACCEPTED = b"\x00\x00"


@statement("MQTT-3.1.0-1")
@pytest.mark.parametrize(
    "data",
    [
        wire.publish("first", b"p", qos=1, packet_id=1),
        wire.subscribe(1, ("first", 0)),
        wire.unsubscribe(1, "first"),
        wire.ack(PUBACK, 1),
        wire.ack(PUBREC, 1),
        wire.PING,
        wire.BYE,
        wire.packet(CONNACK, 0, ACCEPTED),
        b"\x00\x00",
        b"\xf0\x00",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\nAccept: text/html\r\n\r\n",
    ],
    ids=lambda data: data[:2].hex(),
)
def test_first_packet_must_be_connect(broker: Bench, data: bytes) -> None:
    """Anything else is closed without a word."""
    client = broker.open()
    client.send(data)
    client.expect_closed()


@statement("MQTT-3.1.0-1")
def test_publish_before_connect_is_not_delivered(brokers: Bench) -> None:
    """Not even when the CONNECT follows in the same write."""
    sub = brokers.subscriber(brokers.topic("#"))
    early = brokers.open(brokers.pub)
    early.send(wire.publish(brokers.topic(), b"early"), wire.connect("early"))
    early.expect_closed()
    brokers.silence(sub)


@statement("MQTT-3.1.0-2")
@pytest.mark.parametrize("again", ["same", "other"])
def test_second_connect_closes(brokers: Bench, again: str) -> None:
    """A violation, whatever id it has: no second CONNACK, and the will is published."""
    sub = brokers.subscriber((brokers.topic("#"), 1))
    client = brokers.publisher(will=brokers.will(qos=1))
    name = client.client_id if again == "same" else unique()
    client.send(wire.connect(name), wire.publish(brokers.topic("after"), b"p"))
    client.expect_closed()
    sub.acknowledge(sub.expect_publish(brokers.topic("will")))
    brokers.silence(sub)


@statement("MQTT-3.1.2-1", "MQTT-3.2.2-6", "MQTT-3.1.4-1")
@pytest.mark.parametrize("name", ["", "M", "mqtt", "MQTT ", "MQTTX", "MQXT", "MQIsdP", "HTTP"])
def test_wrong_protocol_name_closes(broker: Bench, name: str) -> None:
    """No return code fits, so there is no CONNACK."""
    client = broker.open()
    client.send(wire.connect("c", name=name), wire.PING)
    client.expect_closed()


@statement("MQTT-3.1.2-2", "MQTT-3.2.2-5", "MQTT-3.1.4-5")
@pytest.mark.parametrize("level", [0, 1, 2, 6, 7, 127, 0x83, 0x84, 0x85, 255])
def test_unsupported_level_gets_code_1(broker: Bench, level: int) -> None:
    """Levels that are neither 4 nor 5, those with the bridge bit too: code 1, then closed."""
    client = broker.open()
    client.send(wire.connect("level", level=level), wire.PING)
    assert client.expect(CONNACK).body == b"\x00\x01"
    client.expect_closed()


@statement("MQTT-3.1.2-2")
@pytest.mark.parametrize("level", [0, 4, 5, 0x83])
def test_unsupported_level_of_the_older_name(broker: Bench, level: int) -> None:
    """MQIsdp knows level 3 only; a bridge's 0x83 gets code 1, on which it falls back."""
    client = broker.open()
    client.send(wire.connect("level", name="MQIsdp", level=level))
    assert client.expect(CONNACK).body == b"\x00\x01"
    client.expect_closed()


@statement("MQTT-3.1.4-4")
def test_version_31_is_accepted(brokers: Bench) -> None:
    """Protocol name MQIsdp at level 3 works as 3.1.1 does."""
    sub = brokers.subscriber((brokers.topic(), 1), name="MQIsdp", level=3)
    pub = brokers.publisher(name="MQIsdp", level=3)
    pub.publish(brokers.topic(), b"old", qos=1)
    sub.expect_publish(payload=b"old", qos=1)


def test_version_31_marks_what_is_sent_again(broker: Bench) -> None:
    """PUBREL, SUBSCRIBE and UNSUBSCRIBE may have DUP there; later versions forbid it."""
    client = broker.client(name="MQIsdp", level=3)
    client.publish(broker.topic(), b"1", qos=1)
    for packet, answer in (
        (wire.ack(wire.PUBREL, 7), wire.PUBCOMP),
        (wire.subscribe(8, (broker.topic(), 1)), wire.SUBACK),
        (wire.unsubscribe(9, broker.topic()), wire.UNSUBACK),
    ):
        again = bytes((packet[0] | 0x08,)) + packet[1:]
        client.send(again)
        client.expect(answer)
        newer = broker.client()
        newer.send(again)
        newer.expect_closed()


def test_version_31_has_no_session_present_flag(broker: Bench) -> None:
    """The byte is reserved there, for a session that is resumed, too; the session is there."""
    first = broker.client(clean=False, name="MQIsdp", level=3)
    first.subscribe((broker.topic(), 1))
    first.disconnect()
    client = broker.client(first.client_id, clean=False, name="MQIsdp", level=3)
    assert not client.session_present
    broker.publisher().publish(broker.topic(), b"1", qos=1)
    client.acknowledge(client.expect_publish(payload=b"1", qos=1))


@statement("MQTT-3.1.2-3", "MQTT-3.1.4-1")
def test_reserved_connect_flag_closes(broker: Bench) -> None:
    """Bit 0 of the connect flags."""
    client = broker.open()
    client.send(wire.connect("reserved", set_flags=0x01))
    client.expect_closed()


WILL = Will(topic="w")
CONNECT_HEAD = b"\x00\x04MQTT\x04"
ILLEGAL = {
    "will-qos-without-will": wire.connect("c", set_flags=0x08),
    "will-qos-2-without-will": wire.connect("c", set_flags=0x10),
    "will-retain-without-will": wire.connect("c", set_flags=0x20),
    "will-fields-without-flag": wire.connect("c", will=WILL, clear_flags=0x04),
    "will-flag-without-fields": wire.connect("c", set_flags=0x04),
    "will-flag-without-message": wire.connect("c", set_flags=0x04, tail=wire.string("w")),
    "will-qos-3": wire.connect("c", will=Will(topic="w", qos=3)),
    "user-name-without-flag": wire.connect("c", tail=wire.string("u")),
    "user-name-flag-without-name": wire.connect("c", set_flags=0x80),
    "password-without-flag": wire.connect("c", username="u", tail=wire.string("p")),
    "password-flag-without-password": wire.connect("c", username="u", set_flags=0x40),
    "password-without-user-name": wire.connect("c", password=b"p"),
    "no-client-id": wire.packet(wire.CONNECT, 0, CONNECT_HEAD + b"\x02\x00\x00"),
    "client-id-cut-short": wire.packet(wire.CONNECT, 0, CONNECT_HEAD + b"\x02\x00\x00\x00\x05ab"),
    "no-keep-alive": wire.packet(wire.CONNECT, 0, CONNECT_HEAD + b"\x02"),
    "no-flags": wire.packet(wire.CONNECT, 0, CONNECT_HEAD),
    "no-level": wire.packet(wire.CONNECT, 0, b"\x00\x04MQTT"),
    "empty": wire.packet(wire.CONNECT, 0),
    "something-after-the-end": wire.connect("c", tail=b"\x00"),
}


@statement(
    "MQTT-3.1.2-9",
    "MQTT-3.1.2-11",
    "MQTT-3.1.2-13",
    "MQTT-3.1.2-14",
    "MQTT-3.1.2-15",
    "MQTT-3.1.2-18",
    "MQTT-3.1.2-19",
    "MQTT-3.1.2-20",
    "MQTT-3.1.2-21",
    "MQTT-3.1.2-22",
    "MQTT-3.1.3-3",
    "MQTT-3.1.4-1",
    "MQTT-3.2.2-6",
)
@pytest.mark.parametrize("data", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_connect_that_breaks_the_rules_closes(broker: Bench, data: bytes) -> None:
    """Flags and fields that do not go together: no CONNACK, closed."""
    client = broker.open()
    client.send(data)
    client.expect_closed()


@statement("MQTT-3.1.3-1", "MQTT-3.1.2-9")
def test_all_fields_in_their_order(brokers: Bench) -> None:
    """All five fields are read from their places: the will shows it."""
    sub = brokers.subscriber((brokers.topic("#"), 2))
    will = Will(topic=brokers.topic("will"), payload=b"\x00\xff\x00message", qos=2)
    client = brokers.publisher(will=will, username="user", password=b"\x00\xffpass")
    client.drop()
    sub.expect_publish(brokers.topic("will"), will.payload, qos=2)


@statement("MQTT-3.1.4-4")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"username": "user"},
        {"username": ""},
        {"username": "user", "password": b""},
        {"username": "u", "password": bytes(range(256))},
        {"keep_alive": 65_535},
        {"will": Will(topic="unused", payload=b"")},
    ],
    ids=str,
)
def test_valid_connect_is_accepted(broker: Bench, options: dict[str, object]) -> None:
    """Return code 0; user name and password are taken and ignored."""
    client = broker.open()
    client.send(wire.connect(unique(), **options))  # type: ignore[arg-type]
    assert client.expect(CONNACK).body == ACCEPTED
    client.disconnect()


@statement("MQTT-3.1.3-5")
@pytest.mark.parametrize(
    "client_id",
    ["0", "Z", string.digits, string.ascii_lowercase[:23], string.ascii_uppercase[:23]]
    + [string.ascii_lowercase[20:] + string.ascii_uppercase[20:] + "01234567890"],
)
def test_ordinary_client_ids(broker: Bench, client_id: str) -> None:
    """One to 23 bytes of digits and letters."""
    assert 1 <= len(client_id) <= 23
    client = broker.open()
    client.send(wire.connect(client_id))
    assert client.expect(CONNACK).body == ACCEPTED


@statement("MQTT-3.1.3-2", "MQTT-3.1.4-4")
@pytest.mark.parametrize("size", [24, 256])
def test_long_client_ids(broker: Bench, size: int) -> None:
    """Up to `limits.client_id`, each with a session of its own."""
    name = unique().ljust(size - 1, "i")
    broker.client(name + "1", clean=False).disconnect()
    assert not broker.client(name + "2", clean=False).session_present
    broker.resume(name + "1")


@statement("MQTT-3.1.3-9")
@pytest.mark.parametrize("size", [257, 65_535])
def test_longer_client_ids_are_rejected(broker: Bench, size: int) -> None:
    """Return code 2, then the connection is closed."""
    client = broker.open()
    client.send(wire.connect(unique().ljust(size, "i")))
    assert client.expect(CONNACK).body == b"\0\2"
    client.expect_closed()


@statement("MQTT-3.1.3-2")
def test_client_ids_of_any_characters(broker: Bench) -> None:
    """Wildcards, separators, blanks and letters beyond ASCII are just an id."""
    for text in ("a/b", "#", "+", "$SYS", " ", "é😀", "a b"):
        name = unique() + text
        broker.client(name, clean=False).disconnect()
        broker.resume(name)
        assert not broker.client(name + text, clean=False).session_present


@statement("MQTT-3.1.3-6")
def test_empty_client_ids_are_made_unique(broker: Bench) -> None:
    """Two clients with an empty id live side by side, and get messages side by side."""
    clients = [broker.subscriber((broker.topic(), 0), client_id="") for _ in range(3)]
    broker.publisher().publish(broker.topic(), b"all", qos=1)
    for client in clients:
        client.expect_publish(payload=b"all")
        client.ping()


@statement("MQTT-3.1.3-7", "MQTT-3.1.3-8", "MQTT-3.1.3-9", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
def test_empty_client_id_without_clean_session(broker: Bench) -> None:
    """Return code 2, session present 0, then closed."""
    client = broker.open()
    client.send(wire.connect("", clean=False))
    assert client.expect(CONNACK).body == b"\x00\x02"
    client.expect_closed()


@statement("MQTT-3.2.2-4", "MQTT-3.1.2-2")
def test_refusal_never_says_session_present(broker: Bench) -> None:
    """Also where the client id has a session, which a refused CONNECT leaves as it is."""
    name = unique()
    broker.client(name, clean=False).disconnect()
    client = broker.open()
    client.send(wire.connect(name, clean=False, level=6))
    assert client.expect(CONNACK).body == b"\x00\x01"
    client.expect_closed()
    broker.resume(name)


@statement("MQTT-3.1.4-5")
@pytest.mark.parametrize(
    "options", [{"level": 6}, {"client_id": "", "clean": False}], ids=["level", "client-id"]
)
def test_nothing_after_a_refused_connect_is_processed(
    brokers: Bench, options: dict[str, object]
) -> None:
    """Packets in the same write are lost, and there is no will."""
    sub = brokers.subscriber((brokers.topic("#"), 1))
    client = brokers.open(brokers.pub)
    refused = wire.connect(**{"client_id": "refused", "will": brokers.will(), **options})  # type: ignore[arg-type]
    data = wire.publish(brokers.topic("after"), b"p", qos=1, packet_id=1, retain=True)
    client.send(refused, wire.subscribe(1, (brokers.topic("#"), 1)), data)
    assert client.expect(CONNACK).body[1] in (1, 2)
    client.expect_closed()
    brokers.silence(sub)
    brokers.silence(brokers.subscriber(brokers.topic("after")))


@statement("MQTT-3.2.0-1")
def test_connack_comes_first(brokers: Bench) -> None:
    """Before what is queued for the session, and before the answers to a pipelined write."""
    client = brokers.client(clean=False)
    name = str(client.client_id)
    client.subscribe((brokers.topic(), 1))
    client.disconnect()
    brokers.publisher().publish(brokers.topic(), b"queued", qos=1)
    client = brokers.open()
    client.send(wire.connect(name, clean=False), wire.subscribe(9, ("other", 0)), wire.PING)
    assert client.expect(CONNACK).body == b"\x01\x00"


@statement("MQTT-3.1.4-2")
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_takeover_closes_the_older_connection(brokers: Bench, clean: bool) -> None:
    """The same client id again: the first is closed, the second works, the will is published."""
    name = unique()
    sub = brokers.subscriber((brokers.topic("#"), 1))
    first = brokers.client(name, at=brokers.pub, clean=clean, will=brokers.will(qos=1))
    second = brokers.open(brokers.pub)
    assert second.connect(name, clean=clean) is not clean
    first.expect_closed()
    sub.acknowledge(sub.expect_publish(brokers.topic("will"), b"gone"))
    second.ping()
    second.publish(brokers.topic(), b"second", qos=1)
    sub.acknowledge(sub.expect_publish(brokers.topic(), b"second"))
    with RawClient(brokers.pub) as last:
        last.connect(name)


@statement("MQTT-3.1.4-2")
def test_takeover_of_a_takeover(broker: Bench) -> None:
    """Twenty in a row: each works until the next comes, the last one stays."""
    name = unique()
    previous = broker.client(name)
    for _ in range(20):
        following = broker.client(name)
        previous.expect_closed()
        previous = following
    previous.ping()
