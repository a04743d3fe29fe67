"""
SUBSCRIBE and SUBACK: granted QoS, replacement, several filters at once (3.8, 3.9).
"""

from __future__ import annotations

import threading

import pytest

from tests.support import wire
from tests.support.wire import SUBACK, SUBSCRIBE

from .harness import Bench, unique
from .statements import statement


@statement("MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.8.4-5", "MQTT-3.9.3-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_suback_shows_what_is_granted(brokers: Bench, qos: int) -> None:
    """One SUBACK with one code, which is a QoS not above the requested one, and is kept to."""
    client = brokers.client()
    client.send(wire.subscribe(77, (brokers.topic(), qos)))
    answer = client.expect(SUBACK, 77)
    assert answer.codes == [qos]
    brokers.publisher().publish(brokers.topic(), b"p", qos=2)
    client.acknowledge(client.expect_publish(payload=b"p", qos=qos))


@statement("MQTT-3.8.4-6")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_delivery_at_the_lower_qos(brokers: Bench, published: int, granted: int) -> None:
    """The QoS of the publication or that of the subscription, whichever is lower."""
    sub = brokers.subscriber((brokers.topic("#"), granted))
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"p", qos=published)
    sub.acknowledge(sub.expect_publish(payload=b"p", qos=min(published, granted)))
    brokers.silence(sub, pub)


@statement("MQTT-3.8.3-3", "MQTT-4.8.0-1")
def test_subscribe_without_filters_closes(broker: Bench) -> None:
    """A packet identifier and nothing else."""
    client = broker.client()
    client.send(wire.packet(SUBSCRIBE, 2, b"\x00\x01"))
    client.expect_closed()


@statement("MQTT-3.8.3-4", "MQTT-4.8.0-1")
@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x81, 0xFF])
def test_reserved_bits_or_qos_3_close(broker: Bench, options: int) -> None:
    """No SUBACK, closed, and the other filters of the packet do not hold either."""
    client = broker.client(clean=False)
    good, bad = broker.topic("good"), broker.topic("bad")
    client.send(wire.subscribe(1, (good, 1), (bad, options)))
    client.expect_closed()
    pub = broker.publisher()
    client = broker.resume(str(client.client_id))
    pub.publish(good, b"p", qos=1)
    pub.publish(bad, b"p", qos=1)
    broker.silence(client, pub)


@statement("MQTT-4.8.0-1")
@pytest.mark.parametrize("cut", range(1, 9))
def test_subscribe_that_ends_inside_closes(broker: Bench, cut: int) -> None:
    """Cut short anywhere, with a remaining length that says so."""
    body = b"\x00\x01" + wire.string("abcd") + b"\x01"
    client = broker.client()
    client.send(wire.packet(SUBSCRIBE, 2, body[:-cut]))
    client.expect_closed()


@statement("MQTT-3.8.4-4", "MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
def test_several_filters_in_one_packet(brokers: Bench) -> None:
    """One SUBACK, a code for each filter in their order, and all of them hold."""
    order = [2, 0, 1, 1, 0, 2, 0]
    client = brokers.client()
    filters = [(brokers.topic(f"{n}/#"), qos) for n, qos in enumerate(order)]
    client.send(wire.subscribe(5, *filters))
    assert client.expect(SUBACK, 5).codes == order
    pub = brokers.publisher()
    for number, qos in enumerate(order):
        pub.publish(brokers.topic(f"{number}/x"), b"%d" % number, qos=2)
        client.acknowledge(client.expect_publish(payload=b"%d" % number, qos=qos))
    client.ping()


@statement("MQTT-3.8.4-4", "MQTT-3.9.3-1")
def test_five_hundred_filters_in_one_packet(brokers: Bench) -> None:
    """As many codes, in order."""
    client = brokers.client()
    order = [n % 3 for n in range(500)]
    client.send(wire.subscribe(5, *[(brokers.topic(str(n)), q) for n, q in enumerate(order)]))
    assert client.expect(SUBACK, 5).codes == order
    brokers.publisher().publish(brokers.topic("499"), b"p", qos=2)
    client.acknowledge(client.expect_publish(brokers.topic("499"), qos=order[499]))


@statement("MQTT-3.8.4-4", "MQTT-3.8.4-3")
def test_same_filter_twice_in_one_packet(brokers: Bench) -> None:
    """As if two packets had come: two codes, and the second replaces the first."""
    client = brokers.client()
    client.send(wire.subscribe(5, (brokers.topic(), 2), (brokers.topic(), 0)))
    assert client.expect(SUBACK, 5).codes == [2, 0]
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"p", qos=2)
    client.expect_publish(payload=b"p", qos=0)
    brokers.silence(client, pub)


@statement("MQTT-3.8.4-3")
@pytest.mark.parametrize("second", [0, 1, 2])
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("rest", ["x", "+", "#"])
def test_identical_filter_replaces(brokers: Bench, rest: str, first: int, second: int) -> None:
    """The new QoS holds, up or down, each message comes once, retained ones come again."""
    pub = brokers.publisher()
    pub.publish(brokers.topic("x"), b"kept", qos=2, retain=True)
    sub = brokers.client()
    for qos in (first, second):
        assert sub.subscribe((brokers.topic(rest), qos)) == [qos]
        sub.acknowledge(sub.expect_publish(payload=b"kept", qos=qos, retain=True))
    pub.publish(brokers.topic("x"), b"live", qos=2)
    sub.acknowledge(sub.expect_publish(payload=b"live", qos=second, retain=False))
    sub.unsubscribe(brokers.topic(rest))
    pub.publish(brokers.topic("x"), b"after", qos=2)
    brokers.silence(sub, pub)


@statement("MQTT-3.8.4-3")
def test_replacement_does_not_interrupt_the_flow(brokers: Bench) -> None:
    """
    While 300 messages run, the subscription is replaced again and again: each message comes once
    and in order, the retained one after each replacement.
    """
    pub = brokers.publisher()
    pub.publish(brokers.topic("kept"), b"kept", qos=1, retain=True)
    sub = brokers.subscriber((brokers.topic("+"), 1))
    sub.take(1)

    def run() -> None:
        for number in range(300):
            pub.publish(brokers.topic("live"), b"%d" % number, qos=1)

    publisher = threading.Thread(target=run)
    publisher.start()
    live: list[int] = []
    kept = replaced = 0
    while len(live) < 300 or kept < replaced:
        if len(live) % 30 == 0 and replaced < 8 and kept == replaced:
            sub.subscribe((brokers.topic("+"), 1))
            replaced += 1
        (message,) = sub.take(1)
        if message.retain:
            assert message.payload == b"kept"
            kept += 1
        else:
            live.append(int(message.payload))
    publisher.join()
    assert live == list(range(300)) and kept == replaced >= 2
    brokers.silence(sub, pub)


@statement("MQTT-3.8.4-3", "MQTT-3.1.2-4")
def test_replacement_in_a_resumed_session(brokers: Bench) -> None:
    """A client that subscribes again after each reconnect gets each message once."""
    name = unique()
    pub = brokers.publisher()
    for number in range(4):
        client = brokers.open()
        assert client.connect(name, clean=False) is (number > 0)
        client.subscribe((brokers.topic(), 1))
        pub.publish(brokers.topic(), b"%d" % number, qos=1)
        client.acknowledge(client.expect_publish(payload=b"%d" % number))
        brokers.silence(client, pub)
        client.disconnect()
    brokers.client(name).disconnect()


@statement("MQTT-3.8.3-2")
@pytest.mark.parametrize("rest", ["#", "+/b/c", "a/+/c", "a/b/+", "+/+/+", "a/#", "+/#", "a/+/#"])
def test_wildcards_are_supported(brokers: Bench, rest: str) -> None:
    """Granted, and they match."""
    sub = brokers.subscriber((brokers.topic(rest), 1))
    brokers.publisher().publish(brokers.topic("a/b/c"), b"p", qos=1)
    sub.acknowledge(sub.expect_publish(brokers.topic("a/b/c"), b"p"))


@statement("MQTT-3.8.4-1", "MQTT-4.5.0-1")
def test_subscription_holds_from_the_suback_on(brokers: Bench) -> None:
    """What is published after the SUBACK arrives, every time, from either side."""
    publishers = [brokers.publisher(), brokers.client()]
    for number in range(20):
        sub = brokers.subscriber((brokers.topic(f"{number}/#"), 0))
        for pub in publishers:
            pub.publish(brokers.topic(f"{number}/x"), b"%d" % number, qos=0)
            sub.expect_publish(payload=b"%d" % number)
        sub.disconnect()
