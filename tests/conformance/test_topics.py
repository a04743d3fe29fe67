"""
Topic names and filters: wildcards, empty levels, topics that start with $ (4.7).
"""

from __future__ import annotations

import pytest

from tests.support import wire

from .harness import Bench, unique
from .statements import statement

# Below a base of one's own: filter, topics that match, topics that do not.
MATCHING: list[tuple[str, list[str], list[str]]] = [
    ("sport/tennis/player1/#", ["sport/tennis/player1", "sport/tennis/player1/ranking"], ["sport"]),
    ("sport/tennis/player1/#", ["sport/tennis/player1/score/wimbledon"], ["sport/tennis/player10"]),
    ("sport/#", ["sport", "sport/", "sport/a/b/c"], ["sports", "Sport/a", "a/sport"]),
    ("sport/tennis/+", ["sport/tennis/a", "sport/tennis/"], ["sport/tennis", "sport/tennis/a/b"]),
    ("sport/+", ["sport/", "sport/a"], ["sport", "sport/a/", "sport//a"]),
    ("+", ["a", "", " "], ["a/b", "/a", "a/"]),
    ("+/+", ["/finance", "a/", "/", "a/b"], ["a", "a/b/c", "//"]),
    ("/+", ["/finance", "/"], ["finance", "a/b", "//"]),
    ("+/tennis/#", ["a/tennis", "/tennis", "a/tennis/b/c"], ["tennis", "a/b/tennis"]),
    ("+/+/+", ["a/b/c", "//", "a//c"], ["a/b", "a/b/c/d", "/"]),
    ("a/+/c/#", ["a/b/c", "a//c", "a/b/c/d/e"], ["a/c", "a/b/b/c", "a/b/d"]),
    ("a/+/+", ["a/b/c", "a//"], ["a/b", "a", "b/b/c"]),
    ("a//b", ["a//b"], ["a/b", "a///b", "a/x/b"]),
    ("/", ["/"], ["", "//", "a/"]),
    ("a/$x/#", ["a/$x", "a/$x/b"], ["a/x"]),
    ("+/$x", ["a/$x", "$a/$x"], ["$x"]),
]


@statement("MQTT-4.7.3-4", "MQTT-3.3.2-3", "MQTT-4.5.0-1")
@pytest.mark.parametrize("row", range(len(MATCHING)), ids=[row[0] for row in MATCHING])
def test_matching(brokers: Bench, row: int) -> None:
    """The examples of the standard and their neighbours, below a level of one's own."""
    text, inside, outside = MATCHING[row]
    sub = brokers.subscriber((brokers.topic(text), 1))
    pub = brokers.publisher()
    for name in (*outside, *inside):
        pub.publish(brokers.topic(name), name.encode(), qos=1)
    got = brokers.until_marker(sub, pub)
    # The marker's own subscription overlaps some of the filters, never these topics.
    assert [m.topic for m in got] == [brokers.topic(name) for name in inside]


ILLEGAL = ["#/", "#/a", "a/#/b", "a#", "#a", "##", "a/##", "a/b#", "+a", "a+", "++", "a/+b/c"]


@statement("MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.8.0-1")
@pytest.mark.parametrize("text", [*ILLEGAL, "a/b+/c", "a/++", "+#", "#+", "a/+#"])
def test_illegal_filter_closes(broker: Bench, text: str) -> None:
    """Wildcards that do not fill their level, or # before the end, also below a legal filter."""
    for head in ("", broker.topic("")):
        client = broker.client()
        client.send(wire.subscribe(1, (broker.topic("ok"), 0), (head + text, 0)))
        client.expect_closed()


@statement("MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.8.0-1")
@pytest.mark.parametrize("text", ["a/#/b", "a#", "a+/b"])
def test_illegal_filter_in_unsubscribe_closes(broker: Bench, text: str) -> None:
    """No subscription can be meant by it."""
    client = broker.client()
    client.send(wire.unsubscribe(1, broker.topic(text)))
    client.expect_closed()


@statement("MQTT-4.7.2-1")
def test_wildcard_at_the_start_does_not_match_dollar(brokers: Bench) -> None:
    """Neither # nor + nor +/...: but a filter that starts with the same $ level does."""
    name = unique("$")
    topic = f"{name}/x/y"
    wild = [brokers.client() for _ in range(4)]
    for client, text in zip(wild, ["#", "+/x/y", "+/#", "+/+/+"], strict=True):
        client.subscribe((text, 1))
    exact = [brokers.subscriber((text, 1)) for text in (topic, f"{name}/#", f"{name}/+/y")]
    pub = brokers.publisher()
    pub.publish(topic, b"p", qos=1)
    for client in exact:
        client.acknowledge(client.expect_publish(topic, b"p", qos=1))
    for client in wild:
        seen = [m.topic for m in brokers.until_marker(client, pub)]
        assert not [text for text in seen if text.startswith("$")]


@statement("MQTT-4.7.2-1")
def test_wildcard_at_the_start_does_not_bring_retained_dollar_topics(brokers: Bench) -> None:
    """The same for what is retained, $SYS among it."""
    topic = unique("$") + "/x"
    pub = brokers.publisher()
    pub.publish(topic, b"kept", qos=1, retain=True)
    for text in ("#", "+/x", "+/#"):
        sub = brokers.subscriber((text, 0))
        seen = [m.topic for m in brokers.until_marker(sub, pub)]
        assert not [name for name in seen if name.startswith("$")]
    brokers.subscriber((topic, 0)).expect_publish(topic, b"kept", retain=True)
    pub.publish(topic, b"", qos=1, retain=True)


@statement("MQTT-4.7.2-1")
def test_sys_is_there_but_not_in_a_wildcard(broker: Bench) -> None:
    """$SYS/# brings something retained from $SYS/broker; # brings nothing of it."""
    pub = broker.publisher()
    wild = broker.subscriber("#", "+/broker/#")
    sub = broker.subscriber("$SYS/#")
    while not sub.expect_publish().topic.startswith("$SYS/broker/"):
        pass
    seen = [m.topic for m in broker.until_marker(wild, pub)]
    assert not [name for name in seen if name.startswith("$")]


@statement("MQTT-4.7.1-1")
def test_wildcard_characters_are_legal_in_filters_only(brokers: Bench) -> None:
    """The same text that a SUBSCRIBE may carry closes as a topic name."""
    text = brokers.topic("+/x")
    sub = brokers.subscriber((text, 1))
    client = brokers.publisher()
    client.send(wire.publish(text, b"bad", qos=1, packet_id=1))
    client.expect_closed()
    brokers.silence(sub)


@pytest.mark.parametrize("depth", [4, 50, 200])
def test_deep_topics(brokers: Bench, depth: int) -> None:
    """Two hundred levels, with wildcards at every level and at the end."""
    head = brokers.base.count("/") + 1
    levels = ["l"] * (depth - head)
    topic = brokers.topic("/".join(levels))
    filters = [topic, brokers.topic("/".join(["+"] * len(levels))), brokers.topic("#")]
    filters.append(brokers.topic("/".join([*levels[:-1], "#"])))
    subs = [brokers.subscriber((text, 1)) for text in filters]
    brokers.publisher().publish(topic, b"deep", qos=1)
    for sub in subs:
        sub.acknowledge(sub.expect_publish(topic, b"deep"))
