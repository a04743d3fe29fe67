"""Clean start and session expiry (sections 3.1.2.4, 3.1.2.11.2 and 4.1)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.wire5 import SESSION_EXPIRY

from .harness import Bench5

FOREVER = 0xFFFFFFFF


@level5_statement(
    "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.1.2-23", "MQTT-3.2.2-3", "MQTT-4.1.0-1", "MQTT-4.5.0-1"
)
@pytest.mark.parametrize("expiry", [60, FOREVER])
def test_session_is_resumed(brokers5: Bench5, expiry: int) -> None:
    """With its subscriptions and what came meanwhile."""
    name = unique()
    client = brokers5.client(name, expiry=expiry)
    assert not client.connack.present
    client.subscribe((brokers5.topic("#"), 2))
    client.disconnect()
    pub = brokers5.publisher()
    for number in range(30):
        pub.publish(brokers5.topic("x"), b"%d" % number, qos=1 + number % 2)
    client = brokers5.resume(name, expiry=expiry)
    got = client.take(30)
    assert sorted(int(m.payload) for m in got) == list(range(30))
    assert {m.dup for m in got} == {False}


@level5_statement("MQTT-3.1.2-6", "MQTT-4.1.0-2")
@pytest.mark.parametrize("expiry", [None, 0])
@pytest.mark.parametrize("clean", [True, False])
def test_session_ends_with_its_connection(
    brokers5: Bench5, expiry: int | None, clean: bool
) -> None:
    """Without expiry, whatever clean start says."""
    name = unique()
    client = brokers5.client(name, clean=clean, expiry=expiry)
    client.subscribe((brokers5.topic(), 1))
    client.drop()
    brokers5.publisher().publish(brokers5.topic(), b"lost", qos=1)
    again = brokers5.client(name, clean=False)
    assert not again.connack.present
    brokers5.silence(again)


@level5_statement("MQTT-3.1.2-4", "MQTT-3.1.4-4", "MQTT-3.2.2-2")
def test_clean_start_discards(brokers5: Bench5) -> None:
    """The old session is gone, the new one stays."""
    name = unique()
    client = brokers5.client(name, expiry=60)
    client.subscribe((brokers5.topic("old"), 1))
    client.disconnect()
    pub = brokers5.publisher()
    pub.publish(brokers5.topic("old"), b"old", qos=1)
    client = brokers5.client(name, clean=True, expiry=60)
    assert not client.connack.present
    brokers5.silence(client, pub)
    client.subscribe((brokers5.topic("new"), 1))
    client.disconnect()
    pub.publish(brokers5.topic("new"), b"new", qos=1)
    pub.publish(brokers5.topic("old"), b"old", qos=1)
    client = brokers5.resume(name, expiry=60)
    client.acknowledge(client.expect_publish(brokers5.topic("new"), b"new"))
    brokers5.silence(client, pub)


@level5_statement("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_expiry_passes(brokers5: Bench5) -> None:
    """The session is there within its expiry, and gone behind it."""
    early, late = unique(), unique()
    for name, expiry in ((early, 60), (late, 1)):
        client = brokers5.client(name, expiry=expiry)
        client.subscribe((brokers5.topic(), 1))
        client.disconnect()
    time.sleep(2.5)
    brokers5.resume(early, expiry=1)
    assert not brokers5.client(late, clean=False).connack.present


def test_disconnect_changes_the_expiry(broker5: Bench5) -> None:
    """To 0: the session ends. To more: it stays longer."""
    name = unique()
    broker5.client(name, expiry=60).disconnect(0, properties=[(SESSION_EXPIRY, 0)])
    assert not broker5.client(name, clean=False, expiry=1).connack.present
    name = unique()
    broker5.client(name, expiry=1).disconnect(0, properties=[(SESSION_EXPIRY, 60)])
    time.sleep(2.5)
    broker5.resume(name)


def test_disconnect_may_not_begin_an_expiry(broker5: Bench5) -> None:
    """From 0 to more is a protocol error."""
    client = broker5.client()
    client.send(wire5.disconnect(0, [(SESSION_EXPIRY, 60)]))
    client.expect_disconnect(0x82)


@level5_statement("MQTT-3.1.4-3", "MQTT-3.1.2-5")
def test_takeover_resumes(brokers5: Bench5) -> None:
    """A second connection of the id gets the session of the first."""
    name = unique()
    first = brokers5.client(name, expiry=60)
    first.subscribe((brokers5.topic(), 1))
    second = brokers5.resume(name, expiry=60)
    first.expect_disconnect(0x8E)
    brokers5.publisher().publish(brokers5.topic(), b"1", qos=1)
    second.acknowledge(second.expect_publish(payload=b"1"))


def test_other_level_goes_on(brokers5: Bench5) -> None:
    """A session of level 5 goes on with level 4, and back."""
    name = unique()
    client = brokers5.client(name, expiry=60)
    client.subscribe((brokers5.topic(), 1))
    client.disconnect()
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=1, properties=[(wire5.USER_PROPERTY, ("a", "b"))])
    older = brokers5.older_session(name)
    older.acknowledge(older.expect_publish(payload=b"1", qos=1))
    older.disconnect()
    pub.publish(brokers5.topic(), b"2", qos=1, properties=[(wire5.USER_PROPERTY, ("a", "b"))])
    client = brokers5.resume(name, expiry=60)
    found = client.expect_publish(payload=b"2", properties=[(wire5.USER_PROPERTY, ("a", "b"))])
    client.acknowledge(found)


WEEK = 604_800  # seconds, the default of `session_limits.age`


@pytest.mark.parametrize(("asked", "told"), [(100, []), (FOREVER, [WEEK]), (WEEK + 1, [WEEK])])
def test_server_tells_a_shorter_expiry(broker5: Bench5, asked: int, told: list[int]) -> None:
    """CONNACK names the expiry that counts where it is not the one that was asked for."""
    properties = broker5.client(unique(), expiry=asked).connack.properties
    assert [value for name, value in properties if name == SESSION_EXPIRY] == told


@level5_statement("MQTT-3.1.2-23", "MQTT-4.1.0-2")
def test_connect_changes_the_expiry(brokers5: Bench5) -> None:
    """Each CONNECT sets the expiry of the session that it resumes, none included."""
    shorter, none = unique(), unique()
    for name, expiry in ((shorter, 1), (none, None)):
        client = brokers5.client(name, expiry=60)
        client.subscribe((brokers5.topic(), 1))
        client.drop()
        brokers5.resume(name, expiry=expiry).drop()
    assert not brokers5.client(none, clean=False).connack.present
    time.sleep(2.5)
    assert not brokers5.client(shorter, clean=False).connack.present
