"""
Sessions: what CleanSession keeps and discards, and session present (3.1.2.4, 3.2.2.2, 4.1).
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.wire import PUBCOMP, PUBREC, PUBREL

from .harness import Bench, unique
from .statements import statement


@statement("MQTT-3.1.2-4", "MQTT-3.2.2-2", "MQTT-3.2.2-3", "MQTT-4.1.0-1", "MQTT-3.1.4-3")
def test_session_is_resumed(brokers: Bench) -> None:
    """Created at first, there the next time, with its subscriptions and their QoS."""
    name = unique()
    client = brokers.client(name, clean=False)
    assert not client.session_present
    client.subscribe((brokers.topic("one"), 1), (brokers.topic("two/#"), 2))
    client.disconnect()
    client = brokers.resume(name)
    pub = brokers.publisher()
    pub.publish(brokers.topic("one"), b"1", qos=2)
    client.acknowledge(client.expect_publish(brokers.topic("one"), b"1", qos=1, dup=False))
    pub.publish(brokers.topic("two/2"), b"2", qos=2)
    client.acknowledge(client.expect_publish(brokers.topic("two/2"), b"2", qos=2, dup=False))


@statement("MQTT-3.2.2-3", "MQTT-3.1.2-4")
def test_new_session_is_not_present(broker: Bench) -> None:
    """CleanSession 0 for an id never seen: session present 0, and it is stored from then on."""
    name = unique()
    broker.client(name, clean=False).disconnect()
    first = broker.open()
    first.send(wire.connect(unique(), clean=False))
    assert first.expect(wire.CONNACK).body == b"\x00\x00"
    again = broker.open()
    again.send(wire.connect(name, clean=False))
    assert again.expect(wire.CONNACK).body == b"\x01\x00"


@statement("MQTT-3.1.2-4", "MQTT-4.1.0-1")
@pytest.mark.parametrize("end", ["drop", "reset", "violation"])
def test_session_outlives_any_end_of_the_connection(brokers: Bench, end: str) -> None:
    """Also when the client vanishes or breaks the rules."""
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic(), 1))
    if end == "reset":
        client.reset()
    elif end == "drop":
        client.drop()
    else:
        client.send(b"\xf0\x00")
        client.expect_closed()
    brokers.publisher().publish(brokers.topic(), b"kept", qos=1)
    client = brokers.resume(name)
    client.acknowledge(client.expect_publish(payload=b"kept"))


@statement("MQTT-3.1.2-5", "MQTT-4.5.0-1")
def test_messages_for_a_session_that_is_away_are_stored(brokers: Bench) -> None:
    """QoS 1 and 2, in order, each with its QoS; the QoS 0 ones are not queued."""
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic("#"), 2))
    client.disconnect()
    pub = brokers.publisher()
    for number in range(60):
        pub.publish(brokers.topic("x"), b"%d" % number, qos=number % 3)
    client = brokers.resume(name)
    got = brokers.until_marker(client, pub)
    expected = [(b"%d" % n, n % 3) for n in range(60) if n % 3]
    for qos in (1, 2):
        assert [m.payload for m in got if m.qos == qos] == [p for p, q in expected if q == qos]
    assert sorted((m.payload, m.qos) for m in got) == sorted(expected)
    assert {m.dup for m in got} == {False} and {m.retain for m in got} == {False}


@statement("MQTT-3.1.2-5")
def test_granted_qos_0_is_not_queued(brokers: Bench) -> None:
    """A QoS 1 message for a subscription at QoS 0 is a QoS 0 delivery, so it is not kept."""
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic("zero"), 0), (brokers.topic("one"), 1))
    client.disconnect()
    pub = brokers.publisher()
    pub.publish(brokers.topic("zero"), b"lost", qos=1)
    pub.publish(brokers.topic("one"), b"kept", qos=1)
    client = brokers.resume(name)
    client.acknowledge(client.expect_publish(brokers.topic("one"), b"kept", qos=1))
    brokers.silence(client, pub)


@statement("MQTT-3.1.2-5", "MQTT-4.1.0-1")
def test_queue_goes_on_where_it_stopped(brokers: Bench) -> None:
    """Taken ones do not come again; those that arrive while away again are added."""
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic(), 1))
    pub = brokers.publisher()
    expected = 0
    for round_ in range(3):
        client.disconnect()
        for number in range(10):
            pub.publish(brokers.topic(), b"%d" % (round_ * 10 + number), qos=1)
        client = brokers.resume(name)
        for message in client.take(10):
            assert message.payload == b"%d" % expected
            expected += 1
        client.ping()


@statement("MQTT-3.1.2-6", "MQTT-3.2.2-1", "MQTT-3.1.4-3")
def test_clean_session_discards_what_was(brokers: Bench) -> None:
    """Session present 0, subscriptions and queued messages gone, for good."""
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic(), 1))
    client.disconnect()
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"queued", qos=1)
    client = brokers.open()
    client.send(wire.connect(name))
    assert client.expect(wire.CONNACK).body == b"\x00\x00"
    pub.publish(brokers.topic(), b"live", qos=1)
    brokers.silence(client, pub)
    client.disconnect()
    client = brokers.open()
    assert client.connect(name, clean=False) is False
    brokers.silence(client, pub)
    client.disconnect()
    brokers.resume(name)


@statement("MQTT-3.1.2-6")
@pytest.mark.parametrize("end", ["disconnect", "drop"])
def test_clean_session_is_not_used_again(brokers: Bench, end: str) -> None:
    """What a clean session subscribed and had in flight ends with its connection."""
    name = unique()
    client = brokers.client(name)
    client.subscribe((brokers.topic(), 1))
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"in flight", qos=1)
    client.expect_publish(payload=b"in flight")
    getattr(client, end)()
    pub.publish(brokers.topic(), b"later", qos=1)
    client = brokers.client(name, clean=False)
    brokers.silence(client, pub)


@statement("MQTT-3.1.2-6")
def test_clean_session_forgets_open_receptions(brokers: Bench) -> None:
    """An identifier that was open at QoS 2 is a new publication after CleanSession 1."""
    name = unique()
    sub = brokers.subscriber((brokers.topic(), 2))
    client = brokers.client(name, at=brokers.pub, clean=False)
    client.send(wire.publish(brokers.topic(), b"one", qos=2, packet_id=5))
    client.expect(PUBREC, 5)
    client.drop()
    client = brokers.client(name, at=brokers.pub)
    client.send(wire.publish(brokers.topic(), b"two", qos=2, packet_id=5))
    client.expect(PUBREC, 5)
    client.send(wire.ack(PUBREL, 5))
    client.expect(PUBCOMP, 5)
    # The first may have been passed on with its PUBREC already, or not at all.
    got = [m.payload for m in brokers.until_marker(sub, client)]
    assert got in ([b"one", b"two"], [b"two"])


@statement("MQTT-3.1.2-7")
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_retained_message_outlives_the_session(brokers: Bench, clean: bool) -> None:
    """The publisher's session ends, also by CleanSession; the retained message stays."""
    name = unique()
    client = brokers.client(name, at=brokers.pub, clean=clean)
    client.publish(brokers.topic(), b"stays", qos=1, retain=True)
    client.disconnect()
    brokers.client(name, at=brokers.pub).disconnect()
    brokers.subscriber(brokers.topic()).expect_publish(payload=b"stays", retain=True)


@statement("MQTT-4.1.0-2")
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_session_lasts_while_connected(brokers: Bench, clean: bool) -> None:
    """However much other clients come and go, and whatever else the client does."""
    client = brokers.client(clean=clean)
    client.subscribe((brokers.topic(), 2))
    for _ in range(20):
        brokers.client().disconnect()
        client.ping()
    client.unsubscribe("something/else")
    brokers.publisher().publish(brokers.topic(), b"still", qos=2)
    client.acknowledge(client.expect_publish(payload=b"still", qos=2))


@statement("MQTT-3.1.3-2")
def test_sessions_of_two_ids_are_apart(brokers: Bench) -> None:
    """Ids that differ in case or by one character have nothing in common."""
    base = unique()
    names = [base, base.upper() + "x", base + "x", base + "/", base + " "]
    for name in names:
        client = brokers.client(name, clean=False)
        client.subscribe((brokers.topic(str(names.index(name))), 1))
        client.disconnect()
    pub = brokers.publisher()
    for number in range(len(names)):
        pub.publish(brokers.topic(str(number)), b"%d" % number, qos=1)
    for number, name in enumerate(names):
        client = brokers.resume(name)
        client.acknowledge(client.expect_publish(payload=b"%d" % number))
        client.ping()


@statement("MQTT-3.1.2-4", "MQTT-3.3.1-6")
def test_resuming_is_no_new_subscription(brokers: Bench) -> None:
    """Retained messages come with a SUBSCRIBE, not with a CONNECT."""
    name = unique()
    pub = brokers.publisher()
    pub.publish(brokers.topic(), b"retained", qos=1, retain=True)
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic(), 1))
    client.acknowledge(client.expect_publish(payload=b"retained", retain=True))
    client.disconnect()
    brokers.silence(brokers.resume(name), pub)
