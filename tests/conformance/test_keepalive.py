"""
Keep-alive, PINGREQ and DISCONNECT (3.1.2.10, 3.12, 3.14).
"""

from __future__ import annotations

import itertools
import time

import pytest

from tests.support import wire
from tests.support.rawclient import ConnectionEnded
from tests.support.wire import PINGREQ, PINGRESP

from .harness import Bench
from .statements import statement


@statement("MQTT-3.12.4-1")
def test_ping_is_answered(broker: Bench) -> None:
    """One PINGRESP for each PINGREQ, however many come at once."""
    client = broker.client()
    client.ping()
    client.send(wire.packet(PINGREQ, 0) * 50)
    for _ in range(50):
        client.expect(PINGRESP)
    client.send(wire.BYE)
    client.expect_closed()


@statement("MQTT-3.1.2-24")
def test_silence_ends_the_connection_and_publishes_the_will(brokers: Bench) -> None:
    """
    After one and a half keep-alive times, not before, as if the network had failed.
    """
    sub = brokers.subscriber((brokers.topic("#"), 1))
    start = time.monotonic()
    client = brokers.publisher(keep_alive=1, will=brokers.will(qos=1))
    client.expect_closed(timeout=30.0)
    assert 1.45 <= time.monotonic() - start
    sub.acknowledge(sub.expect_publish(brokers.topic("will")))


@statement("MQTT-3.1.2-24")
def test_it_is_closed_after_one_and_a_half_times(broker: Bench) -> None:
    """Not after two: on a busy machine now and then."""
    taken = [2.0]
    while len(taken) < 9 and taken[-1] >= 2.0:
        start = time.monotonic()
        broker.client(keep_alive=1).expect_closed()
        taken.append(time.monotonic() - start)
    assert 1.45 <= taken[-1] < 2.0, taken


def _pace(broker: Bench, data: bytes, answer: bool) -> None:
    """
    Send `data` three times after nine tenths of the keep-alive time: within the time, but over it
    without what is sent. Where the machine is so busy that it comes too late the time is longer.
    """
    for keep_alive in (1, 4, 12):
        sent = [time.monotonic()]
        client = broker.client(keep_alive=keep_alive)
        try:
            for _ in range(3):
                time.sleep(0.9 * keep_alive)
                client.send(data)
                sent.append(time.monotonic())
                if answer:
                    client.receive()
            client.ping()
            return
        except ConnectionEnded:
            sent.append(time.monotonic())
            longest = max(later - one for one, later in itertools.pairwise(sent))
            assert longest > 1.4 * keep_alive, sent
    pytest.fail("the machine was too busy each time")


@statement("MQTT-3.1.2-24")
@pytest.mark.parametrize("kind", ["ping", "publish"])
def test_any_packet_keeps_the_connection(broker: Bench, kind: str) -> None:
    """Not only PINGREQ counts; a QoS 0 PUBLISH, which has no answer, does too."""
    data = wire.PING if kind == "ping" else wire.publish(broker.topic(), b"p")
    _pace(broker, data, answer=kind == "ping")


@statement("MQTT-3.1.2-24")
def test_what_the_server_sends_does_not_count(broker: Bench) -> None:
    """A subscriber that gets messages all the time but says nothing is closed too."""
    pub = broker.publisher()
    start = time.monotonic()
    sub = broker.subscriber(broker.topic(), keep_alive=1)
    with pytest.raises(ConnectionEnded):
        while time.monotonic() - start < 30.0:
            pub.publish(broker.topic(), b"tick")
            sub.receive()
            time.sleep(0.1)
    assert 1.45 <= time.monotonic() - start


@statement("MQTT-3.1.2-24")
def test_bytes_of_an_unfinished_packet_do_not_count(broker: Bench) -> None:
    """It is control packets that must come; one that trickles in and never ends is none."""
    start = time.monotonic()
    client = broker.client(keep_alive=1)
    client.send(b"\x30" + wire.length(1000) + wire.string(broker.topic()))
    with pytest.raises(ConnectionEnded):
        while time.monotonic() - start < 30.0:
            client.send(b"x")
            if client.has_input(0.3):
                client.receive()
    assert 1.45 <= time.monotonic() - start


def test_keep_alive_0_never_times_out(broker: Bench) -> None:
    """Beside a connection with keep-alive 1 that is closed meanwhile."""
    without = broker.client(keep_alive=0)
    broker.client(keep_alive=1).expect_closed(timeout=30.0)
    without.ping()


@statement("MQTT-3.14.4-1")
def test_server_closes_after_disconnect(broker: Bench) -> None:
    """It does not wait for the client to do so."""
    client = broker.client()
    client.send(wire.BYE)
    client.expect_closed()


@statement("MQTT-3.14.4-2")
def test_nothing_after_disconnect_is_processed(brokers: Bench) -> None:
    """Packets behind a DISCONNECT in the same write have no effect and no answer."""
    sub = brokers.subscriber(brokers.topic("#"))
    client = brokers.publisher()
    late = wire.publish(brokers.topic("late"), b"p", qos=1, packet_id=1)
    client.send(wire.publish(brokers.topic("last"), b"p"), wire.BYE, late, wire.PING)
    client.expect_closed()
    sub.expect_publish(brokers.topic("last"))
    brokers.silence(sub)


@statement("MQTT-3.14.1-1", "MQTT-2.2.2-2")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_disconnect_with_reserved_bits(broker: Bench, flags: int) -> None:
    """It closes as any illegal packet does: the will is published."""
    sub = broker.subscriber((broker.topic("#"), 1))
    client = broker.publisher(will=broker.will(qos=1))
    client.send(wire.packet(wire.DISCONNECT, flags))
    client.expect_closed()
    sub.acknowledge(sub.expect_publish(broker.topic("will"), b"gone"))
