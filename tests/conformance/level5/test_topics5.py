"""Topic names, filters and retained messages of level 5 (sections 3.3.1, 3.10.4, 4.6 and 4.7)."""

from __future__ import annotations

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.wire5 import REASON_STRING

from .harness import Bench5

AS_PUBLISHED = 0x08


@level5_statement("MQTT-3.3.2-3", "MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-4")
@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("a/b", {"a/b"}),
        ("a/+", {"a/b", "a/", "a/B", "a/ b"}),
        ("a/#", {"a", "a/", "a/b", "a/b/c", "a//c", "a/B", "a/ b"}),
        ("+/b", {"a/b"}),
        ("a/+/c", {"a/b/c", "a//c"}),
        ("a//c", {"a//c"}),
        ("a/B", {"a/B"}),
        ("a/ b", {"a/ b"}),
        ("\u00e5", {"\u00e5"}),
        ("a\u030a", {"a\u030a"}),
    ],
)
def test_filters_match(brokers5: Bench5, text: str, hits: set[str]) -> None:
    """What matches comes with its topic, and nothing else; no two spellings are one."""
    topics = ["a", "a/", "a/b", "a/b/c", "a//c", "a/B", "a/ b", "\u00e5", "a\u030a"]
    sub = brokers5.subscriber(brokers5.topic(text))
    pub = brokers5.publisher()
    for topic in topics:
        pub.publish(brokers5.topic(topic), topic.encode())
    for topic in topics:
        if topic in hits:
            sub.expect_publish(brokers5.topic(topic), topic.encode())
    brokers5.silence(sub, pub)


@level5_statement("MQTT-4.7.2-1")
@pytest.mark.parametrize("text", ["#", "+/{}", "+/#"])
def test_wildcards_do_not_match_dollar(broker5: Bench5, text: str) -> None:
    """A filter that begins with a wildcard gets no topic that begins with $; one with $ does."""
    word = unique()
    sub = broker5.subscriber(text.format(word))
    named = broker5.subscriber(f"$own/{word}")
    pub = broker5.publisher()
    pub.publish(f"$own/{word}", b"1")
    pub.publish(f"own/{word}", b"2")
    named.expect_publish(f"$own/{word}", b"1")
    while (found := sub.expect_publish()).payload != b"2":
        assert not found.topic.startswith("$"), found  # another test's message


@level5_statement("MQTT-4.7.3-3")
def test_longest_topics(broker5: Bench5) -> None:
    """Names and filters of 65,535 bytes, at all QoS."""
    topic = broker5.topic("t" * (65_535 - len(broker5.topic(""))))
    assert len(topic) == 65_535
    sub = broker5.subscriber((topic, 2))
    pub = broker5.publisher()
    for qos in (0, 1, 2):
        pub.publish(topic, b"%d" % qos, qos=qos)
        sub.acknowledge(sub.expect_publish(topic, b"%d" % qos, qos=qos))
    assert sub.unsubscribe(topic).codes == (0,)


@level5_statement("MQTT-3.10.4-1", "MQTT-3.10.4-2")
@pytest.mark.parametrize("expiry", [None, 60])
def test_unsubscribe_compares_filters(brokers5: Bench5, expiry: int | None) -> None:
    """Only the equal filter is deleted, and it gets nothing new."""
    client = brokers5.client(unique(), expiry=expiry)
    client.subscribe((brokers5.topic("a/+"), 1), (brokers5.topic("a/b"), 1))
    pub = brokers5.publisher()
    for other in ("a/#", "a/B", "a/b/", "a", "+/b", "a/ b"):
        assert client.unsubscribe(brokers5.topic(other)).codes == (0x11,)
    pub.publish(brokers5.topic("a/b"), b"1", qos=1)
    client.acknowledge(client.expect_publish(payload=b"1"))
    assert client.unsubscribe(brokers5.topic("a/+")).codes == (0,)
    pub.publish(brokers5.topic("a/c"), b"2", qos=1)
    pub.publish(brokers5.topic("a/b"), b"3", qos=1)
    client.acknowledge(client.expect_publish(payload=b"3"))
    assert client.unsubscribe(brokers5.topic("a/b")).codes == (0,)
    pub.publish(brokers5.topic("a/b"), b"4", qos=1)
    brokers5.silence(client, pub)


@level5_statement("MQTT-3.3.1-6", "MQTT-3.3.1-7")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_empty_message_removes_the_retained_one(brokers5: Bench5, qos: int) -> None:
    """It is delivered as any other, and nothing is retained from then on."""
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"kept", qos=1, retain=True)
    sub = brokers5.subscriber((brokers5.topic(), 2 | AS_PUBLISHED))
    sub.acknowledge(sub.expect_publish(payload=b"kept", retain=True))
    pair: wire5.Properties = [(wire5.USER_PROPERTY, ("a", "b"))]
    for _ in range(2):
        pub.publish(brokers5.topic(), b"", qos=qos, retain=True, properties=pair)
        sub.acknowledge(sub.expect_publish(payload=b"", retain=True, qos=qos, properties=pair))
    late = brokers5.subscriber((brokers5.topic(), 1))
    brokers5.silence(late, pub)


@level5_statement("MQTT-3.3.1-8")
@pytest.mark.parametrize("payload", [b"", b"passing"])
def test_message_that_is_not_retained_changes_nothing(brokers5: Bench5, payload: bytes) -> None:
    """Without RETAIN a message neither removes nor replaces what is retained."""
    pub = brokers5.publisher()
    pub.publish(brokers5.topic("none"), payload, qos=1)
    pub.publish(brokers5.topic(), b"kept", qos=1, retain=True)
    pub.publish(brokers5.topic(), payload, qos=1)
    late = brokers5.subscriber((brokers5.topic(), 1), (brokers5.topic("none"), 1))
    late.acknowledge(late.expect_publish(brokers5.topic(), b"kept", retain=True))
    brokers5.silence(late, pub)
    pub.publish(brokers5.topic(), b"", retain=True, qos=1)


@level5_statement("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry", [None, 60])
def test_topics_are_ordered(brokers5: Bench5, qos: int, expiry: int | None) -> None:
    """Messages of a topic and QoS come in order, to each of two subscriptions' clients."""
    exact = brokers5.client(unique(), expiry=expiry)
    exact.subscribe((brokers5.topic(), 2))
    wild = brokers5.subscriber((brokers5.topic("+"), 2))
    pub = brokers5.publisher()
    numbers = [b"%d" % number for number in range(40)]
    for payload in numbers:
        pub.publish(brokers5.topic(), payload, qos=qos)
    for sub in (exact, wild):
        assert [message.payload for message in sub.take(40)] == numbers


REFUSED = {
    "a/#/b": "Topic filter 'a/#/b': The wildcard # fills the last level of a filter, as in a/#.",
    "a/b+": "Topic filter 'a/b+': The wildcard + fills a whole level of a filter, as in a/+/b.",
    "$share/g": "Topic filter '$share/g': A shared subscription has a filter after its group: "
    "$share/GROUP/FILTER.",
    "x/" * 300: f"'{'x/' * 30}...' has 301 levels: use 200, or raise limits.levels.",
}


@level5_statement("MQTT-4.7.1-1", "MQTT-4.7.1-2")
@pytest.mark.parametrize("text", REFUSED)
def test_refused_filter_is_named(broker5: Bench5, text: str) -> None:
    """The reason says which filter it is, what is wrong with it, and how it would be right."""
    client = broker5.client()
    client.send(wire5.subscribe(1, (text, 0)))
    found = client.expect_disconnect(0x8F)
    assert REFUSED[text] == wire5.first(found.properties, REASON_STRING)
