"""SUBSCRIBE and UNSUBSCRIBE of level 5 (sections 3.8 to 3.11)."""

from __future__ import annotations

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.wire5 import SUBSCRIPTION_ID

from .harness import Bench5

NO_LOCAL, AS_PUBLISHED = 0x04, 0x08
NEW_ONLY, NO_RETAINED = 0x10, 0x20


@level5_statement("MQTT-3.8.3-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local(brokers5: Bench5, qos: int) -> None:
    """Its own messages do not come back, those of others come."""
    both = brokers5.client()
    both.subscribe((brokers5.topic(), 2 | NO_LOCAL))
    both.publish(brokers5.topic(), b"own", qos=qos)
    brokers5.settle(both)
    brokers5.publisher().publish(brokers5.topic(), b"other", qos=qos)
    found = both.expect_publish(brokers5.topic(), b"other")
    both.acknowledge(found)


@level5_statement("MQTT-3.8.3-3")
def test_no_local_of_a_session_that_is_away(brokers5: Bench5) -> None:
    """Also what is read for it later."""
    name = unique()
    client = brokers5.client(name, expiry=60)
    client.subscribe((brokers5.topic(), 1 | NO_LOCAL))
    client.disconnect()
    client = brokers5.resume(name, expiry=60)
    client.publish(brokers5.topic(), b"own", qos=1)
    client.disconnect()
    brokers5.publisher().publish(brokers5.topic(), b"other", qos=1)
    client = brokers5.resume(name, expiry=60)
    client.acknowledge(client.expect_publish(payload=b"other"))
    brokers5.silence(client)


@level5_statement("MQTT-3.3.1-12", "MQTT-3.3.1-13")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_as_published(brokers5: Bench5, qos: int) -> None:
    """The flag of the publisher, or 0."""
    kept = brokers5.subscriber((brokers5.topic(), 2 | AS_PUBLISHED))
    plain = brokers5.subscriber((brokers5.topic(), 2))
    pub = brokers5.publisher()
    for retain in (True, False):
        pub.publish(brokers5.topic(), b"1", qos=qos, retain=retain)
        kept.acknowledge(kept.expect_publish(brokers5.topic(), b"1", retain=retain))
        plain.acknowledge(plain.expect_publish(brokers5.topic(), b"1", retain=False))
    pub.publish(brokers5.topic(), b"", retain=True, qos=1)


@level5_statement("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-3", "MQTT-3.8.4-4")
def test_retain_handling(brokers5: Bench5) -> None:
    """0: always; 1: for a new subscription; 2: never."""
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"kept", qos=1, retain=True)
    always = brokers5.client()
    for _ in range(2):
        always.subscribe((brokers5.topic(), 1))
        always.acknowledge(always.expect_publish(payload=b"kept", retain=True))
    fresh = brokers5.client()
    fresh.subscribe((brokers5.topic(), 1 | NEW_ONLY))
    fresh.acknowledge(fresh.expect_publish(payload=b"kept", retain=True))
    fresh.subscribe((brokers5.topic(), 1 | NEW_ONLY))
    brokers5.silence(fresh, pub)
    never = brokers5.client()
    never.subscribe((brokers5.topic(), 1 | NO_RETAINED))
    brokers5.silence(never, pub)
    pub.publish(brokers5.topic(), b"2", qos=1)
    never.acknowledge(never.expect_publish(payload=b"2", retain=False))
    pub.publish(brokers5.topic(), b"", retain=True, qos=1)


@level5_statement("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.8.4-3")
def test_subscription_identifiers(brokers5: Bench5) -> None:
    """All that match, in one copy at the highest QoS."""
    sub = brokers5.client()
    sub.subscribe((brokers5.topic("a/#"), 0), properties=[(SUBSCRIPTION_ID, 1)])
    sub.subscribe((brokers5.topic("a/b"), 1), properties=[(SUBSCRIPTION_ID, 268_435_455)])
    sub.subscribe((brokers5.topic("+/b"), 0))
    pub = brokers5.publisher()
    for qos in (0, 1):
        pub.publish(brokers5.topic("a/b"), b"1", qos=qos)
        got = [sub.expect_publish(payload=b"1")]
        ids = sorted(v for n, v in got[0].properties if n == SUBSCRIPTION_ID)  # type: ignore[type-var]
        assert ids == [1, 268_435_455] and got[0].qos == qos
        sub.acknowledge(got[0])
    pub.publish(brokers5.topic("c/b"), b"2")
    assert not sub.expect_publish(payload=b"2").properties
    sub.subscribe((brokers5.topic("a/#"), 0), properties=[(SUBSCRIPTION_ID, 7)])
    pub.publish(brokers5.topic("a/c"), b"3")
    assert sub.expect_publish(payload=b"3").properties == [(SUBSCRIPTION_ID, 7)]
    brokers5.silence(sub, pub)


@level5_statement("MQTT-3.3.4-3")
def test_identifiers_of_retained_and_stored_messages(brokers5: Bench5) -> None:
    """They come with a retained message, and after the session was away."""
    name = unique()
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"kept", qos=1, retain=True)
    sub = brokers5.client(name, expiry=60)
    sub.subscribe((brokers5.topic(), 1), properties=[(SUBSCRIPTION_ID, 9)])
    found = sub.expect_publish(payload=b"kept", properties=[(SUBSCRIPTION_ID, 9)])
    sub.acknowledge(found)
    sub.disconnect()
    pub.publish(brokers5.topic(), b"2", qos=1)
    sub = brokers5.resume(name, expiry=60)
    sub.acknowledge(sub.expect_publish(payload=b"2", properties=[(SUBSCRIPTION_ID, 9)]))
    pub.publish(brokers5.topic(), b"", retain=True, qos=1)


@level5_statement("MQTT-3.8.3-2", "MQTT-3.8.3-4", "MQTT-3.8.3-5", "MQTT-3.10.3-2")
@pytest.mark.parametrize(
    ("packet", "codes"),
    [
        (wire5.subscribe(1, ("a", 0), properties=[(SUBSCRIPTION_ID, 0)]), (0x82, 0x81)),
        (wire5.subscribe(1, ("a", 0), properties=bytes([11, 1, 11, 2])), (0x82, 0x81)),
        (wire5.subscribe(1, ("a", 3)), (0x81, 0x82)),
        (wire5.subscribe(1, ("a", 0x30)), (0x82, 0x81)),
        (wire5.subscribe(1, ("a", 0x40)), (0x81, 0x82)),
        (wire5.subscribe(1, ("a", 0x80)), (0x81, 0x82)),
        (wire5.subscribe(1), (0x82, 0x81)),
        (wire5.subscribe(0, ("a", 0)), (0x82, 0x81)),
        (wire5.unsubscribe(1), (0x82, 0x81)),
        (wire5.subscribe(1, ("$share/g/a", NO_LOCAL)), (0x82,)),
    ],
    ids=[
        "id-0",
        "two-ids",
        "qos-3",
        "handling-3",
        "bit-6",
        "bit-7",
        "no-filter",
        "packet-0",
        "nothing",
        "shared-no-local",
    ],
)
def test_illegal_subscribes(broker5: Bench5, packet: bytes, codes: tuple[int, ...]) -> None:
    """DISCONNECT with the reason."""
    client = broker5.client()
    client.send(packet)
    client.expect_disconnect(*codes)


@level5_statement("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1")
@pytest.mark.parametrize("text", ["a/#/b", "a+", "#a", ""])
def test_illegal_filters(broker5: Bench5, text: str) -> None:
    """DISCONNECT, or 0x8F in SUBACK."""
    client = broker5.client()
    client.send(wire5.subscribe(1, (text, 0)))
    found = client.receive()
    assert isinstance(found, wire5.Answer) and found.codes[0] in (0x8F, 0x81, 0x82)


@level5_statement(
    "MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2"
)
def test_unsuback_says_what_was_there(brokers5: Bench5) -> None:
    """0x00 for a subscription, 0x11 for none."""
    client = brokers5.subscriber((brokers5.topic("a"), 1), (brokers5.topic("b"), 1))
    filters = [brokers5.topic(t) for t in "axb"]
    assert client.unsubscribe(*filters).codes == (0, 0x11, 0)
    assert client.unsubscribe(*filters).codes == (0x11, 0x11, 0x11)


@level5_statement(
    "MQTT-3.8.4-1",
    "MQTT-3.8.4-2",
    "MQTT-3.8.4-5",
    "MQTT-3.8.4-6",
    "MQTT-3.8.4-7",
    "MQTT-3.9.3-1",
    "MQTT-3.9.3-2",
)
def test_large_requests(broker5: Bench5) -> None:
    """Thousands of filters in one packet, answered one by one."""
    client = broker5.client()
    filters = [(broker5.topic(f"{n}/x"), n % 3) for n in range(2_000)]
    found = client.subscribe(*filters, properties=[(SUBSCRIPTION_ID, 5)])
    assert found.codes == tuple(qos for _, qos in filters)
    broker5.publisher().publish(broker5.topic("1999/x"), b"1")
    assert client.expect_publish(payload=b"1").properties == [(SUBSCRIPTION_ID, 5)]
    found = client.unsubscribe(*(text for text, _ in filters), broker5.topic("none"))
    assert found.codes == (0,) * 2_000 + (0x11,)


def test_user_properties_of_requests(broker5: Bench5) -> None:
    """They are accepted."""
    client = broker5.client()
    client.subscribe("a", properties=[(wire5.USER_PROPERTY, ("a", "b"))])
