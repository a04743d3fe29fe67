"""
Retained messages: set, replaced, cleared, and to whom they come (3.3.1.3).
"""

from __future__ import annotations

import pytest

from .harness import Bench
from .statements import statement


@statement("MQTT-3.3.1-5", "MQTT-3.3.1-8", "MQTT-3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_retained_message_and_its_qos_are_stored(
    brokers: Bench, published: int, granted: int
) -> None:
    """A subscriber that comes later gets it, RETAIN 1, at the lower QoS of the two."""
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"kept", qos=published, retain=True)
    brokers.settle(pub)
    first = brokers.subscriber((brokers.topic(), granted), at=brokers.pub)
    second = brokers.subscriber((brokers.topic(), granted))
    for sub in (first, second):
        message = sub.expect_publish(brokers.topic(), b"kept", retain=True, dup=False)
        assert message.qos == min(published, granted)
        sub.acknowledge(message)


@statement("MQTT-3.3.1-6", "MQTT-3.3.1-8")
def test_last_retained_message_of_each_matching_topic(brokers: Bench) -> None:
    """Through a wildcard: one a topic, the last one, and none of topics that do not match."""
    pub = brokers.publisher()
    for turn in (b"old", b"new"):
        for name in ("a", "a/b", "a/b/c", "d/b", "d"):
            pub.publish(brokers.topic(name), turn + name.encode(), qos=1, retain=True)
    sub = brokers.subscriber((brokers.topic("a/#"), 1))
    got = brokers.until_marker(sub, pub)
    assert sorted((m.topic, m.payload) for m in got) == [
        (brokers.topic(name), b"new" + name.encode()) for name in ("a", "a/b", "a/b/c")
    ]
    assert all(m.retain for m in got)


@statement("MQTT-3.3.1-6", "MQTT-3.8.4-4")
def test_retained_messages_for_several_filters(brokers: Bench) -> None:
    """Each filter of one SUBSCRIBE brings its own; overlapping ones at least one copy."""
    pub = brokers.publisher()
    for name in ("a", "b", "c"):
        pub.publish(brokers.topic(name), name.encode(), qos=1, retain=True)
    filters = [(brokers.topic("a"), 0), (brokers.topic("b"), 1), (brokers.topic("+"), 1)]
    sub = brokers.subscriber(*filters)
    got = brokers.until_marker(sub, pub)
    assert {m.payload for m in got} == {b"a", b"b", b"c"}
    assert 3 <= len(got) <= 5 and all(m.retain for m in got)


@statement("MQTT-3.3.1-7")
@pytest.mark.parametrize("before", [0, 1, 2])
def test_qos_0_replaces_what_was_retained(brokers: Bench, before: int) -> None:
    """The older message is discarded, whatever its QoS was; the newer is there instead."""
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"older", qos=before, retain=True)
    pub.publish(brokers.topic(), b"newer", qos=0, retain=True)
    brokers.settle(pub)
    live = brokers.subscriber((brokers.topic(), 2))
    live.expect_publish(payload=b"newer", qos=0, retain=True)
    brokers.silence(live, pub)


@statement("MQTT-3.3.1-5")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_retained_message_replaces_the_one_before(brokers: Bench, qos: int) -> None:
    """Twenty in a row: only the last is there."""
    pub = brokers.publisher()
    for number in range(20):
        pub.publish(brokers.topic(), b"%d" % number, qos=qos, retain=True)
    brokers.settle(pub)
    sub = brokers.subscriber((brokers.topic(), 2))
    sub.acknowledge(sub.expect_publish(payload=b"19", retain=True, qos=qos))
    brokers.silence(sub, pub)


@statement("MQTT-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live_delivery_is_not_flagged(brokers: Bench, qos: int) -> None:
    """RETAIN 0 for subscriptions that are there, also exact ones, also after a retained one."""
    subs = [brokers.subscriber((brokers.topic(f), 2)) for f in ("x", "#")]
    pub = brokers.publisher()
    for payload in (b"one", b"two"):
        pub.publish(brokers.topic("x"), payload, qos=qos, retain=True)
        for sub in subs:
            sub.acknowledge(sub.expect_publish(payload=payload, qos=qos, retain=False))


@statement("MQTT-3.3.1-9", "MQTT-3.1.2-5")
def test_queued_delivery_is_not_flagged(brokers: Bench) -> None:
    """A session that was away had its subscription all the time."""
    client = brokers.client(clean=False)
    client.subscribe((brokers.topic(), 1))
    client.disconnect()
    brokers.publisher().publish(brokers.topic(), b"p", qos=1, retain=True)
    client = brokers.resume(str(client.client_id))
    client.acknowledge(client.expect_publish(payload=b"p", retain=False))


@statement("MQTT-3.3.1-10", "MQTT-3.3.1-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_empty_retained_message_clears(brokers: Bench, qos: int) -> None:
    """Delivered like any message to those who are there, and the topic has none afterwards."""
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"kept", qos=1, retain=True)
    live = brokers.subscriber((brokers.topic(), 2))
    live.acknowledge(live.expect_publish(payload=b"kept", retain=True))
    pub.publish(brokers.topic(), b"", qos=qos, retain=True)
    live.acknowledge(live.expect_publish(brokers.topic(), b"", qos=qos, retain=False))
    for at in (brokers.pub, brokers.sub):
        brokers.silence(brokers.subscriber((brokers.topic("#"), 2), at=at), pub)


@statement("MQTT-3.3.1-11")
def test_empty_retained_message_is_not_stored(brokers: Bench) -> None:
    """Also where there was nothing to clear: no later subscriber gets an empty message."""
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"", qos=1, retain=True)
    brokers.silence(brokers.subscriber((brokers.topic(), 1)), pub)
    pub.publish(brokers.topic(), b"again", qos=1, retain=True)
    sub = brokers.subscriber((brokers.topic(), 1))
    sub.acknowledge(sub.expect_publish(payload=b"again", retain=True))


@statement("MQTT-3.3.1-12")
@pytest.mark.parametrize("payload", [b"plain", b""], ids=["some", "empty"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_that_is_not_retained_changes_nothing(
    brokers: Bench, qos: int, payload: bytes
) -> None:
    """RETAIN 0 neither stores nor replaces nor removes, not even with an empty payload."""
    pub = brokers.publisher()
    pub.publish(brokers.topic("set"), b"kept", qos=1, retain=True)
    pub.publish(brokers.topic("set"), payload, qos=qos)
    pub.publish(brokers.topic("unset"), payload, qos=qos)
    brokers.settle(pub)
    sub = brokers.subscriber((brokers.topic("+"), 1))
    sub.acknowledge(sub.expect_publish(brokers.topic("set"), b"kept", retain=True))
    brokers.silence(sub, pub)


@statement("MQTT-3.3.1-6")
def test_retained_messages_come_to_the_new_subscription_only(brokers: Bench) -> None:
    """Another client's SUBSCRIBE to the same filter brings those that were there nothing."""
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"kept", qos=1, retain=True)
    first = brokers.subscriber((brokers.topic("#"), 1))
    first.acknowledge(first.expect_publish(payload=b"kept", retain=True))
    for at in (brokers.pub, brokers.sub):
        second = brokers.subscriber((brokers.topic("#"), 1), at=at)
        second.acknowledge(second.expect_publish(payload=b"kept", retain=True))
    brokers.silence(first, pub)


@statement("MQTT-3.3.1-6")
def test_retained_message_from_an_ended_subscription_is_new_again(brokers: Bench) -> None:
    """UNSUBSCRIBE and SUBSCRIBE: a new subscription, so it comes again."""
    brokers.publisher().publish(brokers.topic(), b"kept", qos=1, retain=True)
    sub = brokers.client()
    for _ in range(3):
        sub.subscribe((brokers.topic(), 0))
        sub.expect_publish(payload=b"kept", retain=True)
        sub.unsubscribe(brokers.topic())


@statement("MQTT-3.3.1-6", "MQTT-3.3.1-9")
def test_no_stale_value_after_a_newer_one(brokers: Bench) -> None:
    """
    A subscription made in the middle of a stream of retained publishes sees it from some number on,
    first once flagged, then live, never a number twice or backwards.
    """
    pub = brokers.publisher()
    subs = []
    for number in range(1, 61):
        pub.publish(brokers.topic(), b"%d" % number, qos=1, retain=True)
        if number % 20 == 10:
            subs.append(brokers.subscriber((brokers.topic(), 1)))
    for position, sub in enumerate(subs):
        start = position * 20 + 10
        got = sub.take(60 - start + 1)
        assert [int(m.payload) for m in got] == list(range(start, 61))
        assert [m.retain for m in got] == [True] + [False] * (60 - start)


def test_many_retained_messages(brokers: Bench) -> None:
    """Three hundred topics, more than an in-flight window, all to one new subscription."""
    pub = brokers.publisher()
    names = {brokers.topic(f"many/{number}") for number in range(300)}
    for name in names:
        pub.publish(name, name.encode(), qos=1, retain=True)
    sub = brokers.subscriber((brokers.topic("many/+"), 1))
    got = sub.take(300)
    assert {m.topic for m in got} == names and all(m.retain for m in got)
    sub.ping()
