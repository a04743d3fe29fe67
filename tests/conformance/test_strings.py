"""
Strings: well-formed UTF-8, no U+0000, nothing stripped and nothing normalised (1.5.3, 4.7.3).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import wire
from tests.support.wire import Will

from .harness import Bench, unique
from .statements import statement

ILL_FORMED = {
    "surrogate": b"\xed\xa0\x80",
    "low-surrogate": b"\xed\xbf\xbf",
    "surrogate-pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "overlong-2": b"\xc0\xaf",
    "overlong-3": b"\xe0\x80\xaf",
    "overlong-null": b"\xc0\x80",
    "cut-short": b"\xe2\x82",
    "continuation-alone": b"\x80",
    "above-10ffff": b"\xf4\x90\x80\x80",
    "five-bytes": b"\xf8\x88\x80\x80\x80",
    "fe": b"\xfe",
}

# Each field that holds a string, in a packet from a client that is connected.
CONNECTED_FIELDS: dict[str, Callable[[bytes], bytes]] = {
    "publish-0": lambda text: wire.publish(text, b"p"),
    "publish-1": lambda text: wire.publish(text, b"p", qos=1, packet_id=1),
    "subscribe": lambda text: wire.subscribe(1, (text, 0)),
    "unsubscribe": lambda text: wire.unsubscribe(1, text),
}
CONNECT_FIELDS: dict[str, Callable[[bytes], bytes]] = {
    "client-id": lambda text: wire.connect(text),
    "will-topic": lambda text: wire.connect("c", will=Will(topic=text)),
    "user-name": lambda text: wire.connect("c", username=text),
    "user-name-before-password": lambda text: wire.connect("c", username=text, password=b"p"),
    "protocol-name": lambda text: wire.connect("c", name=b"MQ" + text),
}


@statement("MQTT-1.5.3-1", "MQTT-3.3.2-1", "MQTT-3.8.3-1", "MQTT-3.10.3-1")
@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED.keys())
@pytest.mark.parametrize("field", CONNECTED_FIELDS.values(), ids=CONNECTED_FIELDS.keys())
def test_ill_formed_string_closes(
    broker: Bench, field: Callable[[bytes], bytes], text: bytes
) -> None:
    """No acknowledgement, no answer, just the end of the connection."""
    client = broker.client()
    client.send(field(broker.topic("a").encode() + text + b"z"))
    client.expect_closed()


@statement("MQTT-1.5.3-1", "MQTT-3.1.3-4", "MQTT-3.1.3-10", "MQTT-3.1.3-11", "MQTT-3.1.4-1")
@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED.keys())
@pytest.mark.parametrize("field", CONNECT_FIELDS.values(), ids=CONNECT_FIELDS.keys())
def test_ill_formed_string_in_connect_closes(
    broker: Bench, field: Callable[[bytes], bytes], text: bytes
) -> None:
    """A CONNECT with an ill-formed string gets no CONNACK."""
    client = broker.open()
    client.send(field(b"a" + text + b"z"))
    client.expect_closed()


@statement("MQTT-1.5.3-1", "MQTT-1.5.3-2")
@pytest.mark.parametrize("text", [b"\xed\xa0\x80", b"\x00"], ids=["surrogate", "null"])
def test_ill_formed_topic_is_not_delivered(brokers: Bench, text: bytes) -> None:
    """What closes the connection is not passed on either."""
    sub = brokers.subscriber(brokers.topic("#"))
    bad = brokers.publisher()
    bad.send(wire.publish(brokers.topic("a").encode() + text, b"p"))
    bad.expect_closed()
    brokers.silence(sub)


@statement("MQTT-1.5.3-2", "MQTT-4.7.3-2")
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("field", CONNECTED_FIELDS.values(), ids=CONNECTED_FIELDS.keys())
def test_null_character_closes(broker: Bench, field: Callable[[bytes], bytes], place: str) -> None:
    """U+0000 anywhere in a name or filter."""
    text = {"first": b"\x00a", "middle": b"a\x00b", "last": b"a\x00"}[place]
    client = broker.client()
    client.send(field(text))
    client.expect_closed()


@statement("MQTT-1.5.3-2", "MQTT-3.1.4-1")
@pytest.mark.parametrize("field", CONNECT_FIELDS.values(), ids=CONNECT_FIELDS.keys())
def test_null_character_in_connect_closes(broker: Bench, field: Callable[[bytes], bytes]) -> None:
    """U+0000 in a field of CONNECT, and no CONNACK."""
    client = broker.open()
    client.send(field(b"a\x00b"))
    client.expect_closed()


@statement("MQTT-1.5.3-3")
@pytest.mark.parametrize(
    "text", ["\ufeff{}", "{}\ufeff", "{}/\ufeffx/y"], ids=["1st", "last", "mid"]
)
def test_byte_order_mark_is_a_character_of_a_topic(brokers: Bench, text: str) -> None:
    """EF BB BF is neither skipped nor stripped: with and without it are two topics."""
    marked = text.format(brokers.base)
    plain = marked.replace("\ufeff", "")
    with_mark, without = brokers.subscriber(marked), brokers.subscriber(plain)
    pub = brokers.publisher()
    pub.publish(marked, b"marked", qos=1)
    with_mark.expect_publish(marked, b"marked")
    pub.publish(plain, b"plain", qos=1)
    without.expect_publish(plain, b"plain")
    brokers.silence(with_mark, pub)


@statement("MQTT-1.5.3-3", "MQTT-3.1.3-2")
def test_byte_order_mark_is_a_character_of_a_client_id(broker: Bench) -> None:
    """The session of U+FEFF plus name is not that of name."""
    name = unique("bom")
    broker.client("\ufeff" + name, clean=False).disconnect()
    assert broker.open().connect(name) is False
    broker.resume("\ufeff" + name)


def test_well_formed_text_passes_unchanged(brokers: Bench) -> None:
    """One to four byte characters, the last plane and the edges of the surrogates."""
    text = "é€😀\ud7ff\ue000\U0010fffd ~"
    sub = brokers.subscriber(brokers.topic("+"))
    brokers.publisher().publish(brokers.topic(text), b"p", qos=1)
    sub.expect_publish(brokers.topic(text), b"p")


@statement("MQTT-4.7.3-1")
@pytest.mark.parametrize("field", CONNECTED_FIELDS.values(), ids=CONNECTED_FIELDS.keys())
def test_empty_name_or_filter_closes(broker: Bench, field: Callable[[bytes], bytes]) -> None:
    """At least one character."""
    client = broker.client()
    client.send(field(b""))
    client.expect_closed()


@statement("MQTT-4.7.3-1", "MQTT-3.1.4-1")
def test_empty_will_topic_closes(broker: Bench) -> None:
    """A will topic is a topic name."""
    client = broker.open()
    client.send(wire.connect("c", will=Will(topic="")))
    client.expect_closed()


def test_one_character_is_enough(broker: Bench) -> None:
    """A topic of a single letter, and one of a single separator."""
    for topic in ("q", "/"):
        sub = broker.subscriber(topic)
        broker.publisher().publish(topic, b"p", qos=1)
        sub.expect_publish(topic, b"p")


@statement("MQTT-4.7.3-3")
@pytest.mark.parametrize("qos", [0, 2])
def test_names_and_filters_of_65535_bytes(brokers: Bench, qos: int) -> None:
    """The longest name that the length field can say, as a filter and as a topic."""
    head = brokers.topic("")
    topic = head + "x" * (65_535 - len(head))
    sub = brokers.subscriber((topic, qos))
    brokers.publisher().publish(topic, b"p", qos=qos)
    sub.expect_publish(topic, b"p", qos=qos)


VARIANTS = ["a", "A", "a/", "a//", "/a", "//a", "a/b", "a//b", "é", "e\u0301", " a", "a ", "."]


@statement("MQTT-4.7.3-4")
@pytest.mark.parametrize("filtered", VARIANTS)
def test_no_normalisation(brokers: Bench, filtered: str) -> None:
    """Case, composition, blanks and empty levels all count; only the equal name matches."""
    sub = brokers.subscriber((brokers.topic(filtered), 1))
    pub = brokers.publisher()
    for name in VARIANTS:
        pub.publish(brokers.topic(name), name.encode(), qos=1)
    got = brokers.until_marker(sub, pub)
    assert [m.topic for m in got] == [brokers.topic(filtered)]
