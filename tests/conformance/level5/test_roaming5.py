"""Sessions of level 5 that come back at another node: all of their state comes along."""

from __future__ import annotations

import time

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.rawclient5 import RawClient5
from tests.support.wire import PUBACK, PUBCOMP, PUBREC, PUBREL
from tests.support.wire5 import (
    MAXIMUM_PACKET,
    MESSAGE_EXPIRY,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY,
    SUBSCRIPTION_ID,
    USER_PROPERTY,
    WILL_DELAY,
    Properties,
)

from .harness import Bench5

NO_LOCAL, AS_PUBLISHED, NEW_ONLY = 0x04, 0x08, 0x10
PAIRS: Properties = [(USER_PROPERTY, ("b", "1")), (USER_PROPERTY, ("a", "2"))]


def away(brokers5: Bench5, *filters: tuple[str, int], **options: object) -> str:
    """A session that began at the subscriber's node and is away; returns its client id."""
    name = unique()
    client = brokers5.client(name, expiry=60)
    if filters:
        client.subscribe(*filters, **options)  # type: ignore[arg-type]
    client.drop()
    return name


def there(brokers5: Bench5, name: str, **options: object) -> RawClient5:
    """The session's client at the publisher's node."""
    return brokers5.resume(name, at=brokers5.pub, expiry=60, **options)


@level5_statement("MQTT-3.1.2-5", "MQTT-4.5.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_follow(brokers5: Bench5, qos: int) -> None:
    """What came while the session was away is delivered at the other node, in order."""
    name = away(brokers5, (brokers5.topic("#"), qos))
    pub = brokers5.publisher()
    for number in range(20):
        pub.publish(brokers5.topic("a"), b"%d" % number, qos=qos, properties=PAIRS)
    client = there(brokers5, name)
    for number in range(20):
        found = client.expect_publish(brokers5.topic("a"), b"%d" % number, qos=qos)
        assert found.properties == PAIRS
        client.acknowledge(found)
    pub.publish(brokers5.topic("b"), b"live", qos=qos)
    client.acknowledge(client.expect_publish(brokers5.topic("b"), b"live"))
    client.drop()
    brokers5.silence(brokers5.resume(name, expiry=60), pub)


@level5_statement("MQTT-3.8.3-3", "MQTT-3.3.1-13", "MQTT-3.3.4-3")
def test_options_follow(brokers5: Bench5) -> None:
    """No local, retain as published and subscription identifiers hold at the other node."""
    name = unique()
    client = brokers5.client(name, expiry=60)
    own = (brokers5.topic("own"), 1 | NO_LOCAL)
    kept = (brokers5.topic("kept"), 1 | AS_PUBLISHED)
    client.subscribe(own, properties=[(SUBSCRIPTION_ID, 3)])
    client.subscribe(kept, properties=[(SUBSCRIPTION_ID, 268_435_455)])
    client.drop()
    client = there(brokers5, name)
    other = brokers5.publisher()
    client.publish(brokers5.topic("own"), b"mine", qos=1)
    other.publish(brokers5.topic("own"), b"1", qos=1)
    other.publish(brokers5.topic("kept"), b"2", qos=1, retain=True)
    for _ in range(2):
        found = client.expect_publish()
        client.acknowledge(found)
        is_own = found.payload == b"1"
        expected = 3 if is_own else 268_435_455
        assert found.properties == [(SUBSCRIPTION_ID, expected)]
        assert found.retain == (not is_own) and found.payload in (b"1", b"2")
    client.subscribe((brokers5.topic("kept"), 1 | NEW_ONLY))
    brokers5.silence(client, other)
    other.publish(brokers5.topic("kept"), b"", qos=1, retain=True)


@level5_statement("MQTT-3.8.3-3")
def test_no_local_holds_for_what_came_meanwhile(brokers5: Bench5) -> None:
    """The will of a session that was away is its own; at the other node it stays out, too."""
    watcher = brokers5.subscriber((brokers5.topic("own"), 1))
    name = unique()
    client = brokers5.client(name, expiry=60, will=brokers5.will("own", qos=1))
    client.subscribe((brokers5.topic("own"), 1 | NO_LOCAL))
    client.drop()
    watcher.acknowledge(watcher.expect_publish(brokers5.topic("own")))
    client = there(brokers5, name)
    other = brokers5.publisher()
    client.publish(brokers5.topic("own"), b"mine", qos=1)
    other.publish(brokers5.topic("own"), b"1", qos=1)
    client.acknowledge(client.expect_publish(brokers5.topic("own"), b"1"))
    brokers5.silence(client, other)


@level5_statement("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.3-5", "MQTT-4.3.3-6")
def test_deliveries_follow(brokers5: Bench5) -> None:
    """PUBLISH with DUP, or PUBREL, comes again at the other node with its identifier."""
    name = unique()
    client = brokers5.client(name, expiry=60)
    client.subscribe((brokers5.topic(), 2))
    pub = brokers5.publisher()
    for number, qos in enumerate((1, 2, 2)):
        pub.publish(brokers5.topic(), b"%d" % number, qos=qos, properties=PAIRS)
    first, second, third = (client.expect_publish(payload=b"%d" % number) for number in range(3))
    client.send(wire5.ack(PUBREC, third.packet_id))
    client.expect(PUBREL, third.packet_id)
    client.drop()
    client = there(brokers5, name)
    got: dict[int, wire5.Publish | wire5.Answer] = {}
    for _ in range(3):
        found = client.receive()
        got[found.packet_id] = found
    for message in (first, second):
        again = got[message.packet_id]
        assert isinstance(again, wire5.Publish) and again.dup and again.qos == message.qos
        assert (again.payload, again.properties) == (message.payload, PAIRS)
    released = got[third.packet_id]
    assert isinstance(released, wire5.Answer) and released.kind == PUBREL
    client.send(wire5.ack(PUBCOMP, third.packet_id))
    for message in (first, second):
        client.acknowledge(message)
    brokers5.silence(client, pub)


@level5_statement("MQTT-4.3.3-10", "MQTT-4.3.3-12")
def test_receptions_follow(brokers5: Bench5) -> None:
    """A QoS 2 publish that was taken at one node is no new one at the other."""
    sub = brokers5.subscriber((brokers5.topic(), 2))
    name = unique()
    client = brokers5.client(name, expiry=60)
    client.send(wire5.publish(brokers5.topic(), b"1", qos=2, packet_id=77))
    client.expect(PUBREC, 77)
    client.drop()
    client = there(brokers5, name)
    client.send(wire5.publish(brokers5.topic(), b"1", qos=2, packet_id=77, dup=True))
    client.expect(PUBREC, 77)
    client.send(wire5.ack(PUBREL, 77))
    client.expect(PUBCOMP, 77)
    client.send(wire5.publish(brokers5.topic(), b"2", qos=2, packet_id=77))
    client.expect(PUBREC, 77)
    client.send(wire5.ack(PUBREL, 77))
    client.expect(PUBCOMP, 77)
    assert [message.payload for message in sub.take(2)] == [b"1", b"2"]
    brokers5.silence(sub)


@level5_statement("MQTT-3.3.4-9", "MQTT-3.1.2-24", "MQTT-3.1.2-25")
def test_limits_are_those_of_the_connection(brokers5: Bench5) -> None:
    """Receive maximum and maximum packet size of the new connection count, not the older ones."""
    name = away(brokers5, (brokers5.topic(), 1))
    pub = brokers5.publisher()
    for number in range(6):
        payload = b"%d" % number + b"x" * (500 if number == 2 else 0)
        pub.publish(brokers5.topic(), payload, qos=1)
    limits: Properties = [(RECEIVE_MAXIMUM, 2), (MAXIMUM_PACKET, 200)]
    client = there(brokers5, name, properties=limits)
    for pair in ((b"0", b"1"), (b"3", b"4"), (b"5",)):
        held = [client.expect_publish(payload=payload) for payload in pair]
        client.ping()
        for message in held:
            client.acknowledge(message)
    brokers5.silence(client, pub)


@level5_statement("MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_expiry_follows(brokers5: Bench5) -> None:
    """What expired while the session was away stays out; the rest comes with what is left."""
    name = away(brokers5, (brokers5.topic("#"), 1))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic("short"), b"1", qos=1, properties=[(MESSAGE_EXPIRY, 1)])
    pub.publish(brokers5.topic("long"), b"2", qos=1, properties=[(MESSAGE_EXPIRY, 100)])
    time.sleep(2.5)
    client = there(brokers5, name)
    found = client.expect_publish(brokers5.topic("long"), b"2")
    left = wire5.first(found.properties, MESSAGE_EXPIRY)
    assert isinstance(left, int) and 60 <= left <= 98, found
    client.acknowledge(found)
    brokers5.silence(client, pub)


@level5_statement("MQTT-3.1.4-3", "MQTT-3.2.2-3")
def test_takeover_from_the_other_node(brokers5: Bench5) -> None:
    """The older connection gets DISCONNECT 0x8E, the newer one what is in flight."""
    name = unique()
    first = brokers5.client(name, expiry=60)
    first.subscribe((brokers5.topic(), 1))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=1)
    message = first.expect_publish(payload=b"1")
    second = there(brokers5, name)
    first.expect_disconnect(0x8E)
    second.expect_publish(payload=b"1", dup=True, packet_id=message.packet_id)
    second.send(wire5.ack(PUBACK, message.packet_id))
    pub.publish(brokers5.topic(), b"2", qos=1)
    second.acknowledge(second.expect_publish(payload=b"2", dup=False))
    brokers5.silence(second, pub)


@level5_statement("MQTT-3.1.2-4", "MQTT-3.2.2-2")
def test_clean_start_at_the_other_node(brokers5: Bench5) -> None:
    """Clean start 1 ends the session wherever it was, before CONNACK: none is there again."""
    name = away(brokers5, (brokers5.topic(), 1))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=1)
    client = brokers5.client(name, at=brokers5.pub, expiry=60)
    assert not client.connack.present
    brokers5.silence(client, pub)
    client.drop()
    client = brokers5.resume(name, expiry=60)
    client.unsubscribe(brokers5.topic())
    brokers5.silence(client, pub)


@level5_statement("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_session_expires_where_it_was_last(brokers5: Bench5) -> None:
    """The expiry of the last connection counts, also one that DISCONNECT changes."""
    name = away(brokers5, (brokers5.topic(), 1))
    client = there(brokers5, name)
    client.disconnect(0, properties=[(SESSION_EXPIRY, 1)])
    other = away(brokers5, (brokers5.topic(), 1))
    client = brokers5.resume(other, at=brokers5.pub, expiry=1)
    client.disconnect(0, properties=[(SESSION_EXPIRY, 60)])
    time.sleep(2.5)
    assert not brokers5.client(name, clean=False).connack.present
    brokers5.resume(other, expiry=0)


@level5_statement("MQTT-3.1.3-9", "MQTT-3.1.2-8")
@pytest.mark.parametrize("clean", [False, True])
def test_delayed_will_at_the_other_node(brokers5: Bench5, clean: bool) -> None:
    """A client that comes back to its session cancels the will; clean start 1 publishes it."""
    sub = brokers5.subscriber((brokers5.topic("will"), 1))
    name = unique()
    will = brokers5.will(properties=[(WILL_DELAY, 3)])
    brokers5.client(name, expiry=60, will=will).drop()
    back = brokers5.client(name, at=brokers5.pub, clean=clean, expiry=60)
    assert back.connack.present != clean
    if clean:
        sub.expect_publish(brokers5.topic("will"), b"gone")
    else:
        time.sleep(3.5)
    brokers5.silence(sub)
