"""
Beyond the letter of the standard: limits that the broker documents, and how much a client may use.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.support import wire
from tests.support.rawclient import Address, RawClient
from tests.support.wire import PUBACK, PUBCOMP, PUBREC

from .harness import Bench, unique
from .statements import statement


@pytest.fixture
def small(tight: Address) -> Iterator[Bench]:
    """A bench on the node with small limits: 64 KiB a packet, 400 ms to CONNECT."""
    bench = Bench(tight, tight)
    yield bench
    bench.close()


@pytest.mark.parametrize("sent", [b"", b"\x10", wire.connect("late")[:-1]], ids=["0", "1", "most"])
def test_no_connect_in_time_closes(small: Bench, sent: bytes) -> None:
    """Nothing, or a CONNECT that never becomes whole."""
    start = time.monotonic()
    client = small.open()
    client.send(sent)
    client.expect_closed(timeout=30.0)
    assert 0.35 <= time.monotonic() - start < 9.0  # the default would be 10 s


def test_connect_in_time_stays(small: Bench) -> None:
    """A client without keep-alive outlives the time for CONNECT."""
    client = small.client(keep_alive=0)
    small.open().expect_closed(timeout=30.0)
    client.ping()


@statement("MQTT-4.8.0-2", "MQTT-4.8.0-1")
@pytest.mark.parametrize("size", [65_537, 2**20, 268_435_455])
def test_packet_over_the_limit_closes(small: Bench, size: int) -> None:
    """At its first bytes, before it is there; it is not waited for and not stored."""
    sub = small.subscriber(small.topic("#"))
    client = small.publisher()
    client.send(wire.publish(small.topic("last"), b"p"))
    client.send(b"\x30" + wire.length(size) + wire.string(small.topic("big")))
    client.expect_closed()
    sub.expect_publish(small.topic("last"))
    small.silence(sub)


@statement("MQTT-4.8.0-2")
def test_connect_over_the_limit_closes(small: Bench) -> None:
    """No CONNACK either, though it is whole and legal."""
    client = small.open()
    client.send(wire.connect("big", username="u" * 1000, password=b"p" * 65_000))
    client.expect_closed()


def test_packet_at_the_limit_passes(small: Bench) -> None:
    """A few bytes under 64 KiB."""
    sub = small.subscriber((small.topic(), 1))
    payload = b"x" * (65_500 - len(small.topic()))
    small.publisher().publish(small.topic(), payload, qos=1)
    sub.expect_publish(small.topic(), payload)


def _feed(client: RawClient, batches: list[bytes]) -> threading.Thread:
    """Send from a thread, so that the answers can be read meanwhile."""

    def run() -> None:
        for batch in batches:
            client.send(batch)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _chunks(packets: list[bytes], size: int = 1000) -> list[bytes]:
    return [b"".join(packets[i : i + size]) for i in range(0, len(packets), size)]


ALL_IDS = range(1, 65_536)


@statement("MQTT-4.3.3-2", "MQTT-4.6.0-3")
@pytest.mark.timeout(120)
def test_all_identifiers_open_at_qos_2(broker: Bench) -> None:
    """65,535 publications without a PUBREL: all received, repeats known, all completed."""
    client = broker.publisher()
    client.timeout = 60.0
    topic = broker.topic()
    sender = _feed(client, _chunks([wire.publish(topic, qos=2, packet_id=n) for n in ALL_IDS]))
    assert [client.expect(PUBREC).packet_id for _ in ALL_IDS] == list(ALL_IDS)
    sender.join()
    repeated = [1, 40_000, 65_535]
    sub = broker.subscriber(topic)
    for packet_id in repeated:
        client.send(wire.publish(topic, b"again", qos=2, packet_id=packet_id, dup=True))
        client.expect(PUBREC, packet_id)
    sender = _feed(client, _chunks([wire.ack(wire.PUBREL, n) for n in ALL_IDS]))
    assert [client.expect(PUBCOMP).packet_id for _ in ALL_IDS] == list(ALL_IDS)
    sender.join()
    seen = [m for m in broker.until_marker(sub, client) if m.payload == b"again"]
    assert seen == []


@statement("MQTT-2.3.1-4", "MQTT-4.3.2-1")
@pytest.mark.timeout(120)
def test_identifier_in_use_is_left_out_when_they_start_again(broker: Bench) -> None:
    """
    One delivery stays unacknowledged while 66,000 others pass: its identifier is not used again.
    """
    sub = broker.subscriber((broker.topic(), 1))
    pub = broker.publisher()
    pub.publish(broker.topic(), b"held", qos=1)
    held = sub.expect_publish(payload=b"held").packet_id
    batch = b"".join(wire.publish(broker.topic(), qos=1, packet_id=n) for n in range(1, 91))
    for _ in range(66_000 // 90):
        pub.send(batch)
        used = [sub.expect_publish(qos=1).packet_id for _ in range(90)]
        assert held not in used
        sub.send(*[wire.ack(PUBACK, packet_id) for packet_id in used])
        for number in range(1, 91):
            pub.expect(PUBACK, number)


@statement("MQTT-4.6.0-2")
@pytest.mark.timeout(120)
def test_all_identifiers_in_one_stream_at_qos_1(broker: Bench) -> None:
    """65,535 publications without waiting: as many PUBACKs, in order."""
    client = broker.publisher()
    client.timeout = 60.0
    topic = broker.topic()
    sender = _feed(client, _chunks([wire.publish(topic, qos=1, packet_id=n) for n in ALL_IDS]))
    assert [client.expect(PUBACK).packet_id for _ in ALL_IDS] == list(ALL_IDS)
    sender.join()


@pytest.mark.timeout(120)
def test_full_queue_of_a_session_drops_the_oldest(small: Bench) -> None:
    """10,000 messages are kept for a session that is away; the newest ones, in order."""
    name = unique()
    client = small.client(name, clean=False)
    client.subscribe((small.topic(), 1))
    client.disconnect()
    pub = small.publisher()
    pub.timeout = 60.0
    ids = range(1, 10_101)
    packets = [wire.publish(small.topic(), b"%d" % n, qos=1, packet_id=n) for n in ids]
    sender = _feed(pub, _chunks(packets))
    for number in ids:
        pub.expect(PUBACK, number)
    sender.join()
    client = small.resume(name)
    assert [int(m.payload) for m in client.take(10_000)] == list(range(101, 10_101))
    small.silence(client, pub)


def test_subscriber_that_keeps_reading_loses_nothing(brokers: Bench) -> None:
    """20,000 QoS 1 messages as fast as they can be sent: it is busy, not stuck, so it gets all."""
    sub = brokers.subscriber((brokers.topic(), 1))
    pub = brokers.publisher()
    pub.timeout = sub.timeout = 30.0
    ids = range(1, 20_001)
    packets = [wire.publish(brokers.topic(), b"%d" % n, qos=1, packet_id=n) for n in ids]
    sender = _feed(pub, _chunks(packets))
    for number in ids:
        message = sub.expect_publish(payload=b"%d" % number, qos=1)
        sub.send(wire.ack(PUBACK, message.packet_id))
    for number in ids:
        pub.expect(PUBACK, number)
    sender.join()


def test_client_that_does_not_read_stalls_nobody(brokers: Bench) -> None:
    """20 MB for two subscribers, one of which reads nothing at all: the other gets everything."""
    deaf = brokers.subscriber((brokers.topic(), 1))
    sub = brokers.subscriber((brokers.topic(), 1))
    pub = brokers.publisher()
    payload = b"x" * 200_000
    for number in range(100):
        pub.publish(brokers.topic(), b"%d " % number + payload, qos=1)
        (message,) = sub.take(1)
        assert message.payload.startswith(b"%d " % number)
    sub.ping()
    deaf.close()


def test_many_connections(broker: Bench) -> None:
    """Three hundred side by side, each with its subscription, all served."""
    clients = [broker.subscriber(broker.topic()) for _ in range(300)]
    broker.publisher().publish(broker.topic(), b"all", qos=1)
    for client in clients:
        client.expect_publish(payload=b"all")


def test_byte_storm_harms_nobody(brokers: Bench) -> None:
    """Random bytes on thirty connections, before and after CONNECT; others go on undisturbed."""
    sub = brokers.subscriber((brokers.topic(), 1))
    pub = brokers.publisher()
    noise = bytes((n * 167 + n // 7 * 31) % 256 for n in range(4096))
    for number in range(30):
        raw = brokers.open() if number % 2 else brokers.client()
        raw.send(noise[number * 100 :])
        raw.drop()
        pub.publish(brokers.topic(), b"%d" % number, qos=1)
        sub.acknowledge(sub.expect_publish(payload=b"%d" % number))
