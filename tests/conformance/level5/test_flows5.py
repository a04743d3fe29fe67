"""The delivery protocols of QoS 0, 1 and 2, the server as sender and as receiver (4.3)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire5
from tests.support.rawclient5 import RawClient5
from tests.support.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, UNSUBACK
from tests.support.wire5 import MESSAGE_EXPIRY, RECEIVE_MAXIMUM

from .harness import Bench5


def session(brokers5: Bench5, qos: int) -> RawClient5:
    """A client whose session stays, with a subscription to the test's topic."""
    client = brokers5.client(unique(), expiry=60)
    client.subscribe((brokers5.topic(), qos))
    return client


def back(brokers5: Bench5, client: RawClient5) -> RawClient5:
    """The same client on a new connection; the old one was lost."""
    client.drop()
    return brokers5.resume(str(client.client_id), expiry=60)


@level5_statement("MQTT-4.3.1-1", "MQTT-3.3.1-3")
def test_qos_0_is_sent_once(brokers5: Bench5) -> None:
    """With QoS 0 and DUP 0, whatever its publisher's QoS and DUP were."""
    sub = brokers5.subscriber((brokers5.topic(), 0))
    pub = brokers5.publisher()
    for qos in (0, 1, 2):
        pub.publish(brokers5.topic(), b"%d" % qos, qos=qos, dup=qos > 0)
        sub.expect_publish(brokers5.topic(), b"%d" % qos, qos=0, dup=False)
    brokers5.silence(sub, pub)


@level5_statement("MQTT-3.3.1-3", "MQTT-4.3.2-2", "MQTT-4.3.3-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_not_passed_on(brokers5: Bench5, qos: int) -> None:
    """A delivery begins with DUP 0, where the publish had DUP 1, too."""
    sub = brokers5.subscriber((brokers5.topic(), qos))
    pub = brokers5.publisher()
    for payload, dup in ((b"1", False), (b"2", True)):
        pub.publish(brokers5.topic(), payload, qos=qos, dup=dup)
        sub.acknowledge(sub.expect_publish(payload=payload, qos=qos, dup=False))


@level5_statement("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("expiry", [None, 60])
def test_identifiers_are_free(brokers5: Bench5, qos: int, expiry: int | None) -> None:
    """Each new message has one that no unacknowledged message has, and that is not 0."""
    sub = brokers5.client(unique(), expiry=expiry)
    sub.subscribe((brokers5.topic(), qos))
    pub = brokers5.publisher()
    for number in range(50):
        pub.publish(brokers5.topic(), b"%d" % number, qos=qos)
    held = [sub.expect_publish(payload=b"%d" % number) for number in range(50)]
    assert len({message.packet_id for message in held}) == 50
    for message in held[::2]:
        sub.acknowledge(message)
    sub.ping()
    for number in range(10):
        pub.publish(brokers5.topic(), b"%d" % number, qos=qos)
    later = sub.take(10)
    assert not {m.packet_id for m in later} & {m.packet_id for m in held[1::2]}


@level5_statement("MQTT-2.2.1-5", "MQTT-2.2.1-6")
def test_answers_carry_the_identifier(broker5: Bench5) -> None:
    """The lowest, the highest and some between, in all answers."""
    client = broker5.client()
    for packet_id in (1, 255, 256, 65_535):
        client.send(wire5.subscribe(packet_id, (broker5.topic("other"), 1)))
        client.expect(SUBACK, packet_id)
        client.send(wire5.unsubscribe(packet_id, broker5.topic("other")))
        client.expect(UNSUBACK, packet_id)
        client.send(wire5.publish(broker5.topic(), qos=1, packet_id=packet_id))
        client.expect(PUBACK, packet_id)
        client.send(wire5.publish(broker5.topic(), qos=2, packet_id=packet_id))
        client.expect(PUBREC, packet_id)
        client.send(wire5.ack(PUBREL, packet_id))
        client.expect(PUBCOMP, packet_id)


@level5_statement("MQTT-4.3.2-4", "MQTT-4.3.2-5")
@pytest.mark.parametrize("dup", [False, True])
def test_identifier_is_new_after_puback(brokers5: Bench5, dup: bool) -> None:
    """The same identifier again is a new message, whatever DUP says."""
    sub = brokers5.subscriber((brokers5.topic(), 1))
    pub = brokers5.publisher()
    for number in range(3):
        payload = b"%d" % number
        again = dup and number > 0
        pub.send(wire5.publish(brokers5.topic(), payload, qos=1, packet_id=7, dup=again))
        assert pub.expect(PUBACK, 7).code in (0, 0x10)
        sub.acknowledge(sub.expect_publish(payload=payload, qos=1))


@level5_statement("MQTT-4.3.2-3", "MQTT-3.3.1-1", "MQTT-4.4.0-1")
def test_unacknowledged_until_puback(brokers5: Bench5) -> None:
    """Without PUBACK it comes again with DUP 1 and its identifier, on a new connection alone."""
    client = session(brokers5, 1)
    brokers5.publisher().publish(brokers5.topic(), b"p", qos=1)
    first = client.expect_publish(payload=b"p", qos=1, dup=False)
    for _ in range(2):
        client.ping()
        client = back(brokers5, client)
        client.expect_publish(payload=b"p", qos=1, dup=True, packet_id=first.packet_id)
    client.send(wire5.ack(PUBACK, first.packet_id))
    client.ping()
    brokers5.silence(back(brokers5, client))


@level5_statement("MQTT-4.3.3-3", "MQTT-4.3.3-4", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.4.0-1")
def test_qos_2_sender(brokers5: Bench5) -> None:
    """PUBLISH until PUBREC, then PUBREL until PUBCOMP, and never the PUBLISH again."""
    client = session(brokers5, 2)
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"p", qos=2)
    first = client.expect_publish(payload=b"p", qos=2, dup=False)
    client = back(brokers5, client)
    client.expect_publish(payload=b"p", qos=2, dup=True, packet_id=first.packet_id)
    client.send(wire5.ack(PUBREC, first.packet_id))
    assert client.expect(PUBREL, first.packet_id).code == 0
    for _ in range(2):
        client = back(brokers5, client)
        client.expect(PUBREL, first.packet_id)
        client.ping()
    client.send(wire5.ack(PUBCOMP, first.packet_id))
    client.ping()
    brokers5.silence(back(brokers5, client), pub)


@level5_statement("MQTT-4.3.3-8", "MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.3.3-12")
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("expiry", [None, 60])
def test_qos_2_receiver_delivers_once(brokers5: Bench5, dup: bool, expiry: int | None) -> None:
    """Until PUBREL a repeat gets PUBREC and is not delivered; after PUBCOMP it is a new message."""
    sub = brokers5.subscriber((brokers5.topic(), 1))
    pub = brokers5.publisher(client_id=unique(), expiry=expiry)
    for payload in (b"one", b"two"):
        pub.send(wire5.publish(brokers5.topic(), payload, qos=2, packet_id=9))
        assert pub.expect(PUBREC, 9).code in (0, 0x10)
        for _ in range(3):
            pub.send(wire5.publish(brokers5.topic(), payload, qos=2, packet_id=9, dup=dup))
            assert pub.expect(PUBREC, 9).code in (0, 0x10)
        for _ in range(2):
            pub.send(wire5.ack(PUBREL, 9))
            assert pub.expect(PUBCOMP, 9).code in (0, 0x92)
        sub.acknowledge(sub.expect_publish(payload=payload))
    brokers5.silence(sub, pub)


@level5_statement("MQTT-4.3.3-10", "MQTT-4.3.3-11")
def test_open_reception_is_part_of_the_session(brokers5: Bench5) -> None:
    """A PUBLISH that is sent again on the next connection is not delivered again."""
    sub = brokers5.subscriber((brokers5.topic(), 1))
    pub = brokers5.publisher(client_id=unique(), expiry=60)
    pub.send(wire5.publish(brokers5.topic(), b"one", qos=2, packet_id=9))
    pub.expect(PUBREC, 9)
    pub.drop()
    pub = brokers5.resume(str(pub.client_id), at=brokers5.pub, expiry=60)
    pub.send(wire5.publish(brokers5.topic(), b"one", qos=2, packet_id=9, dup=True))
    pub.expect(PUBREC, 9)
    pub.send(wire5.ack(PUBREL, 9))
    pub.expect(PUBCOMP, 9)
    sub.acknowledge(sub.expect_publish(payload=b"one"))
    brokers5.silence(sub, pub)


@level5_statement("MQTT-4.3.3-11", "MQTT-3.6.2-1", "MQTT-3.7.2-1")
@pytest.mark.parametrize("expiry", [None, 60])
def test_unknown_identifiers_are_told(broker5: Bench5, expiry: int | None) -> None:
    """PUBCOMP, and PUBREL for a PUBREC, have 0x92 if no message of QoS 2 has the identifier."""
    client = broker5.client(unique(), expiry=expiry, properties=[(RECEIVE_MAXIMUM, 9)])
    for _ in range(2):
        client.send(wire5.ack(PUBREL, 7))
        assert client.expect(PUBCOMP, 7).code == 0x92
        client.send(wire5.ack(PUBREC, 7))
        assert client.expect(PUBREL, 7).code == 0x92
        # the core has its windows from here on
        client.subscribe((broker5.topic("own"), 1))
        client.publish(broker5.topic("other"), b"1", qos=2)
        client.publish(broker5.topic("own"), b"2", qos=1)
        client.acknowledge(client.expect_publish(payload=b"2"))
    client.send(wire5.ack(PUBREC, 9, 0x80))
    client.ping()
    client.send(wire5.publish(broker5.topic("other"), b"3", qos=2, packet_id=9))
    assert client.expect(PUBREC, 9).code in (0, 0x10)
    for code in (0, 0x92):
        client.send(wire5.ack(PUBREL, 9))
        assert client.expect(PUBCOMP, 9).code == code
    older = broker5.older()
    older.send(wire5.ack(PUBREL, 7), wire5.ack(PUBREC, 7))
    assert older.expect(PUBCOMP).body == older.expect(PUBREL).body == b"\0\7"


@level5_statement("MQTT-4.3.3-11", "MQTT-4.4.0-1")
def test_pubrel_that_comes_again_is_no_error(brokers5: Bench5) -> None:
    """PUBCOMP was lost with its connection: the client that resumes its session ends the flow."""
    pub = brokers5.publisher(client_id=unique(), expiry=60)
    pub.send(wire5.publish(brokers5.topic(), b"1", qos=2, packet_id=9))
    pub.expect(PUBREC, 9)
    pub.send(wire5.ack(PUBREL, 9))
    pub.expect(PUBCOMP, 9)
    pub.drop()
    pub = brokers5.resume(str(pub.client_id), at=brokers5.pub, expiry=60)
    pub.send(wire5.ack(PUBREL, 9))
    assert pub.expect(PUBCOMP, 9).code == 0


@level5_statement("MQTT-4.3.3-9", "MQTT-4.4.0-2")
def test_identifier_of_a_refused_message(broker5: Bench5) -> None:
    """A PUBREC of 0x80 or more ends a delivery: no PUBREL follows, its identifier is free."""
    sub = broker5.client(properties=[(RECEIVE_MAXIMUM, 1)])
    sub.subscribe((broker5.topic(), 2))
    pub = broker5.publisher()
    for number in range(3):
        pub.publish(broker5.topic(), b"%d" % number, qos=2)
        found = sub.expect_publish(payload=b"%d" % number, qos=2)
        sub.send(wire5.ack(PUBREC, found.packet_id, 0x97))
        sub.ping()
    broker5.silence(sub, pub)


@level5_statement("MQTT-4.3.3-13")
def test_expired_message_is_acknowledged_to_the_end(brokers5: Bench5) -> None:
    """The interval passes between PUBREC and PUBREL: PUBCOMP comes, and nothing is stuck."""
    sub = brokers5.subscriber((brokers5.topic(), 2))
    pub = brokers5.publisher()
    interval = [(MESSAGE_EXPIRY, 1)]
    pub.send(wire5.publish(brokers5.topic(), b"1", qos=2, packet_id=9, properties=interval))
    pub.expect(PUBREC, 9)
    found = sub.expect_publish(payload=b"1", qos=2)
    time.sleep(2.1)
    pub.send(wire5.ack(PUBREL, 9))
    assert pub.expect(PUBCOMP, 9).code == 0
    sub.acknowledge(found)
    pub.publish(brokers5.topic(), b"2", qos=2)
    sub.acknowledge(sub.expect_publish(payload=b"2", qos=2))


@level5_statement("MQTT-4.3.3-7", "MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_that_was_sent_does_not_expire(brokers5: Bench5, qos: int) -> None:
    """It comes again after its interval, since the client may have begun with it."""
    client = session(brokers5, qos)
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=qos, properties=[(MESSAGE_EXPIRY, 1)])
    first = client.expect_publish(payload=b"1", qos=qos, dup=False)
    client.drop()
    time.sleep(2.1)
    client = brokers5.resume(str(client.client_id), expiry=60)
    again = client.expect_publish(payload=b"1", qos=qos, dup=True, packet_id=first.packet_id)
    client.acknowledge(again)
    brokers5.silence(client, pub)


@level5_statement("MQTT-3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("expiry", [None, 60])
def test_deliveries_are_finished_after_unsubscribe(
    brokers5: Bench5, qos: int, expiry: int | None
) -> None:
    """What was sent is acknowledged to the end, also over a new connection."""
    client = brokers5.client(unique(), expiry=expiry)
    client.subscribe((brokers5.topic(), qos))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=qos)
    found = client.expect_publish(payload=b"1", qos=qos)
    assert client.unsubscribe(brokers5.topic()).codes == (0,)
    if expiry:
        client = back(brokers5, client)
        client.expect_publish(payload=b"1", qos=qos, dup=True, packet_id=found.packet_id)
    client.acknowledge(found)
    brokers5.silence(client, pub)


@level5_statement("MQTT-4.9.0-1")
def test_send_quota_is_the_receive_maximum(brokers5: Bench5) -> None:
    """So many leave at once, and not one more."""
    sub = brokers5.client(properties=[(RECEIVE_MAXIMUM, 3)])
    sub.subscribe((brokers5.topic(), 2))
    pub = brokers5.publisher()
    for number in range(6):
        pub.publish(brokers5.topic(), b"%d" % number, qos=2)
    held = [sub.expect_publish(payload=b"%d" % number) for number in range(3)]
    sub.ping()
    sub.send(wire5.ack(PUBREC, held[0].packet_id))
    sub.expect(PUBREL, held[0].packet_id)
    sub.ping()  # PUBREC gives no quota back
    sub.send(wire5.ack(PUBCOMP, held[0].packet_id))
    sub.expect_publish(payload=b"3")
    sub.ping()


@level5_statement("MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_interval_runs_while_a_message_is_in_flight(brokers5: Bench5, qos: int) -> None:
    """What is sent again has what is left of its interval."""
    client = session(brokers5, qos)
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=qos, properties=[(MESSAGE_EXPIRY, 100)])
    client.expect_publish(payload=b"1", qos=qos, dup=False)
    client.drop()
    time.sleep(2.1)
    client = brokers5.resume(str(client.client_id), expiry=60)
    again = client.expect_publish(payload=b"1", qos=qos, dup=True)
    left = wire5.first(again.properties, MESSAGE_EXPIRY)
    assert isinstance(left, int) and 50 <= left <= 98, again
    client.acknowledge(again)
