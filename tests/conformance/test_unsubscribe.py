"""
UNSUBSCRIBE and UNSUBACK (3.10, 3.11).
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.wire import PUBREC, PUBREL, UNSUBACK, UNSUBSCRIBE

from .harness import Bench, unique
from .statements import statement


@statement("MQTT-3.10.4-2", "MQTT-3.10.4-4")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("rest", ["x", "+", "#"])
def test_unsubscribed_filter_brings_nothing_more(brokers: Bench, rest: str, qos: int) -> None:
    """After the UNSUBACK no new message is added, while other subscriptions go on."""
    sub = brokers.subscriber((brokers.topic(rest), qos), (brokers.topic("other/x"), qos))
    other = brokers.subscriber((brokers.topic(rest), qos))
    pub = brokers.publisher()
    pub.publish(brokers.topic("x"), b"before", qos=qos)
    for client in (sub, other):
        client.acknowledge(client.expect_publish(payload=b"before"))
    sub.send(wire.unsubscribe(9, brokers.topic(rest)))
    sub.expect(UNSUBACK, 9)
    pub.publish(brokers.topic("x"), b"after", qos=qos)
    pub.publish(brokers.topic("other/x"), b"other", qos=qos)
    other.acknowledge(other.expect_publish(payload=b"after"))
    sub.acknowledge(sub.expect_publish(payload=b"other"))
    brokers.silence(sub, pub)


@statement("MQTT-3.10.4-1")
@pytest.mark.parametrize(
    "given", ["X", "x/", "/x", "x/y", "+", "#", "x/#", "x/+", "./x", "x ", "é"]
)
def test_only_an_equal_filter_is_deleted(brokers: Bench, given: str) -> None:
    """Neither a filter that covers the subscription nor one that looks like it deletes it."""
    sub = brokers.subscriber((brokers.topic("x"), 1))
    sub.unsubscribe(brokers.topic(given))
    brokers.publisher().publish(brokers.topic("x"), b"still", qos=1)
    sub.acknowledge(sub.expect_publish(payload=b"still"))


@statement("MQTT-3.10.4-1")
def test_wildcard_filter_is_deleted_by_itself_only(brokers: Bench) -> None:
    """A narrower name does not delete it, nor make a hole in it; the equal filter does."""
    sub = brokers.subscriber((brokers.topic("a/+"), 1))
    pub = brokers.publisher()
    sub.unsubscribe(brokers.topic("a/x"))
    pub.publish(brokers.topic("a/x"), b"still", qos=1)
    sub.acknowledge(sub.expect_publish(payload=b"still"))
    sub.unsubscribe(brokers.topic("a/+"))
    pub.publish(brokers.topic("a/x"), b"over", qos=1)
    brokers.silence(sub, pub)


@statement("MQTT-3.10.4-1")
def test_overlapping_filter_stays(brokers: Bench) -> None:
    """With the exact one gone, the wide one goes on at its own QoS."""
    sub = brokers.subscriber((brokers.topic("x"), 2), (brokers.topic("#"), 0))
    sub.unsubscribe(brokers.topic("x"))
    brokers.publisher().publish(brokers.topic("x"), b"p", qos=2)
    sub.expect_publish(payload=b"p", qos=0)
    sub.ping()


@statement("MQTT-3.10.4-5", "MQTT-3.10.4-4")
def test_unsuback_also_for_unknown_filters(broker: Bench) -> None:
    """Never subscribed, or unsubscribed already."""
    client = broker.client()
    for packet_id, name in ((1, "never"), (2, "never/#"), (3, "+"), (4, "#")):
        client.send(wire.unsubscribe(packet_id, broker.topic(name)))
        client.expect(UNSUBACK, packet_id)
    client.subscribe(broker.topic())
    for packet_id in (5, 6):
        client.send(wire.unsubscribe(packet_id, broker.topic()))
        client.expect(UNSUBACK, packet_id)


@statement("MQTT-3.10.4-6")
def test_several_filters_in_one_packet(brokers: Bench) -> None:
    """One UNSUBACK; all of them are gone, unknown ones in between do no harm."""
    names = ["a", "b/#", "c/+", "d"]
    sub = brokers.subscriber(*[(brokers.topic(name), 1) for name in names])
    gone = ["a", "unknown", "b/#", "unknown/#", "c/+"]
    sub.send(wire.unsubscribe(3, *map(brokers.topic, gone)))
    sub.expect(UNSUBACK, 3)
    pub = brokers.publisher()
    for name in ("a", "b/x", "c/x", "d"):
        pub.publish(brokers.topic(name), name.encode(), qos=1)
    sub.acknowledge(sub.expect_publish(brokers.topic("d")))
    brokers.silence(sub, pub)


@statement("MQTT-3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_delivery_that_was_begun_is_finished(brokers: Bench, qos: int) -> None:
    """Sent but not acknowledged at the UNSUBSCRIBE: sent again to the session that returns."""
    client = brokers.client(clean=False)
    client.subscribe((brokers.topic(), qos))
    brokers.publisher().publish(brokers.topic(), b"begun", qos=qos)
    first = client.expect_publish(payload=b"begun", qos=qos, dup=False)
    client.unsubscribe(brokers.topic())
    client.drop()
    client = brokers.resume(str(client.client_id))
    again = client.expect_publish(payload=b"begun", qos=qos, dup=True, packet_id=first.packet_id)
    client.acknowledge(again)
    client.ping()


@statement("MQTT-3.10.4-3")
def test_qos_2_flow_goes_on_after_unsubscribe(brokers: Bench) -> None:
    """PUBREC after the UNSUBACK is answered with PUBREL."""
    sub = brokers.subscriber((brokers.topic(), 2))
    brokers.publisher().publish(brokers.topic(), b"p", qos=2)
    message = sub.expect_publish(payload=b"p", qos=2)
    sub.unsubscribe(brokers.topic())
    sub.send(wire.ack(PUBREC, message.packet_id))
    sub.expect(PUBREL, message.packet_id)


@statement("MQTT-3.10.3-2", "MQTT-4.8.0-1")
def test_unsubscribe_without_filters_closes(broker: Bench) -> None:
    """A packet identifier and nothing else."""
    client = broker.client()
    client.send(wire.packet(UNSUBSCRIBE, 2, b"\x00\x01"))
    client.expect_closed()


@statement("MQTT-4.8.0-1")
@pytest.mark.parametrize("cut", range(1, 6))
def test_unsubscribe_that_ends_inside_closes(broker: Bench, cut: int) -> None:
    """Cut short anywhere."""
    body = b"\x00\x01" + wire.string("abcd")
    client = broker.client()
    client.send(wire.packet(UNSUBSCRIBE, 2, body[:-cut]))
    client.expect_closed()


@statement("MQTT-3.10.4-2", "MQTT-4.1.0-1")
def test_unsubscribe_is_part_of_the_session(brokers: Bench) -> None:
    """It holds for messages that come while the client is away, and after it is back."""
    name = unique()
    client = brokers.client(name, clean=False)
    client.subscribe((brokers.topic("gone"), 1), (brokers.topic("kept"), 1))
    client.unsubscribe(brokers.topic("gone"))
    client.disconnect()
    pub = brokers.publisher()
    pub.publish(brokers.topic("gone"), b"gone", qos=1)
    pub.publish(brokers.topic("kept"), b"kept", qos=1)
    client = brokers.resume(name)
    client.acknowledge(client.expect_publish(payload=b"kept"))
    brokers.silence(client, pub)
