"""Wills of level 5 (sections 3.1.2.5 and 3.1.3.2)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.wire5 import USER_PROPERTY, WILL_DELAY

from .harness import Bench5


@level5_statement("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.3-10")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_will_has_its_properties(brokers5: Bench5, qos: int) -> None:
    """All but its delay."""
    sub = brokers5.subscriber((brokers5.topic("will"), 2))
    properties: wire5.Properties = [
        (wire5.PAYLOAD_FORMAT, 1),
        (wire5.CONTENT_TYPE, "text/plain"),
        (wire5.RESPONSE_TOPIC, "r"),
        (wire5.CORRELATION_DATA, b"c"),
        (USER_PROPERTY, ("a", "1")),
        (USER_PROPERTY, ("a", "2")),
    ]
    delay: wire5.Properties = [(WILL_DELAY, 0)]
    client = brokers5.publisher(will=brokers5.will(qos=qos, properties=properties + delay))
    client.drop()
    found = sub.expect_publish(brokers5.topic("will"), b"gone", qos=qos)
    assert sorted(found.properties, key=str) == sorted(properties, key=str)


@level5_statement("MQTT-3.1.2-14", "MQTT-3.1.2-15")
@pytest.mark.parametrize("retain", [False, True])
def test_will_is_retained_if_it_says_so(brokers5: Bench5, retain: bool) -> None:
    """With its properties; and only then."""
    pair: wire5.Properties = [(USER_PROPERTY, ("a", "1"))]
    sub = brokers5.subscriber((brokers5.topic("will"), 1 | 0x08))
    brokers5.publisher(will=brokers5.will(qos=1, retain=retain, properties=pair)).drop()
    sub.acknowledge(sub.expect_publish(payload=b"gone", retain=retain, properties=pair))
    late = brokers5.subscriber((brokers5.topic("will"), 1))
    if retain:
        late.acknowledge(late.expect_publish(payload=b"gone", retain=True, properties=pair))
    brokers5.silence(late)
    brokers5.publisher().publish(brokers5.topic("will"), b"", qos=1, retain=True)


@level5_statement("MQTT-3.1.2-10", "MQTT-3.14.4-3")
def test_disconnect_discards_the_will(brokers5: Bench5) -> None:
    """With reason code 0; 0x04 publishes it."""
    sub = brokers5.subscriber((brokers5.topic("will"), 1))
    brokers5.publisher(will=brokers5.will()).disconnect()
    brokers5.publisher(will=brokers5.will()).disconnect(0)
    brokers5.silence(sub)
    brokers5.publisher(will=brokers5.will()).disconnect(4)
    sub.expect_publish(brokers5.topic("will"), b"gone")


@level5_statement("MQTT-3.1.2-8")
def test_will_is_delayed(brokers5: Bench5) -> None:
    """By its delay, where the session lives longer."""
    sub = brokers5.subscriber((brokers5.topic("will"), 1))
    will = brokers5.will(properties=[(WILL_DELAY, 2)])
    client = brokers5.publisher(client_id=unique(), expiry=60, will=will)
    client.drop()
    dropped = time.monotonic()
    brokers5.silence(sub)
    sub.expect_publish(brokers5.topic("will"), b"gone")
    assert 1.5 < time.monotonic() - dropped


@level5_statement("MQTT-3.1.2-8")
def test_will_of_a_session_that_ends(brokers5: Bench5) -> None:
    """Its session's end publishes it, whatever its delay."""
    sub = brokers5.subscriber((brokers5.topic("will"), 1))
    will = brokers5.will(properties=[(WILL_DELAY, 3_000)])
    brokers5.publisher(client_id=unique(), will=will).drop()
    sub.expect_publish(brokers5.topic("will"), b"gone")
    name = unique()
    brokers5.publisher(client_id=name, expiry=60, will=will).drop()
    brokers5.silence(sub)
    brokers5.publisher(client_id=name, clean=True)
    sub.expect_publish(brokers5.topic("will"), b"gone")


@level5_statement("MQTT-3.1.3-9")
def test_client_that_returns_has_no_will(brokers5: Bench5) -> None:
    """A resumed session cancels the delayed will."""
    sub = brokers5.subscriber((brokers5.topic("will"), 1))
    name = unique()
    will = brokers5.will(properties=[(WILL_DELAY, 2)])
    brokers5.publisher(client_id=name, expiry=60, will=will).drop()
    back = brokers5.publisher(client_id=name, clean=False, expiry=60)
    assert back.connack.present
    time.sleep(2.5)
    brokers5.silence(sub)


@pytest.mark.parametrize(
    "raw", [bytes([WILL_DELAY, 0, 0, 0]), bytes([wire5.SESSION_EXPIRY, 0, 0, 0, 1]), b"\x7f"]
)
def test_illegal_will_properties(broker5: Bench5, raw: bytes) -> None:
    """CONNACK with the reason."""
    client = broker5.open()
    data = bytearray(wire5.connect("x", will=wire5.Will(topic="t")))
    # The will's empty property list stands behind the client id.
    at = len(data) - len(b"\0\0\1t\0\4gone")
    data[at : at + 1] = bytes([len(raw)]) + raw
    data[1] += len(raw)
    client.send(bytes(data))
    client.expect_refused(0x81, 0x82)


@level5_statement("MQTT-3.1.2-8", "MQTT-3.14.4-3")
@pytest.mark.parametrize("code", [0x04, 0x80, 0x81, 0x93, 0x97])
def test_other_disconnects_publish_the_will(broker5: Bench5, code: int) -> None:
    """Only 0x00 discards it."""
    sub = broker5.subscriber((broker5.topic("will"), 1))
    broker5.publisher(will=broker5.will()).disconnect(code)
    sub.expect_publish(broker5.topic("will"), b"gone")
    broker5.silence(sub)


@level5_statement("MQTT-3.1.2-8", "MQTT-3.3.2-6")
def test_expiry_of_a_will_begins_with_its_publication(brokers5: Bench5) -> None:
    """The delay takes nothing off its interval."""
    sub = brokers5.subscriber((brokers5.topic("will"), 1))
    properties: wire5.Properties = [(WILL_DELAY, 2), (wire5.MESSAGE_EXPIRY, 1000)]
    will = brokers5.will(qos=1, properties=properties)
    brokers5.publisher(client_id=unique(), expiry=60, will=will).drop()
    found = sub.expect_publish(brokers5.topic("will"), b"gone")
    left = wire5.first(found.properties, wire5.MESSAGE_EXPIRY)
    assert isinstance(left, int) and 999 <= left <= 1000
    sub.acknowledge(found)
