"""CONNECTs that end in a refusal, some while they wait; no sockets, no time passes."""

from __future__ import annotations

import pytest

from tests.support import wire, wire5
from txbroker.mqtt.transport.protocol import MqttFactory, MqttProtocol
from txbroker.mqtt.transport.service import MOST_SURPLUS
from txbroker.runtime.deadlines import GRAIN

from .test_protocol import Bench, Wire


@pytest.fixture
def bench() -> Bench:
    return Bench()


def connect(bench: Bench) -> Wire:
    """A client whose CONNACK waits until its session is durable."""
    transport = Wire()
    client = MqttFactory(bench.service).buildProtocol(None)
    client.makeConnection(transport)
    client.dataReceived(wire5.connect("c", expiry=60))
    assert transport.value() == b""
    return transport


@pytest.mark.parametrize(("end", "code"), [("again", 0x80), ("retire", 0x9C), ("stop", 0x88)])
def test_a_client_that_waits_is_told_its_end(bench: Bench, end: str, code: int) -> None:
    """By CONNACK: no DISCONNECT may come before it [MQTT-3.2.0-1]."""
    first = connect(bench)
    second = None
    if end == "again":
        second = connect(bench)
    elif end == "retire":
        bench.service.close_all("elsewhere:1883")
    else:
        bench.service.stop()
    told = first.value()
    assert (told[0], told[2], told[3]) == (0x20, 0, code)
    assert (b"elsewhere:1883" in told) == (end == "retire")
    assert first.disconnecting
    bench.edge.settle()
    bench.turn.end()
    assert second is None or second.value()[2:4] == b"\0\0"


def stranger(bench: Bench) -> tuple[MqttProtocol, Wire]:
    """A connection that has sent nothing yet."""
    protocol, transport = MqttFactory(bench.service).buildProtocol(None), Wire()
    protocol.makeConnection(transport)
    return protocol, transport


REFUSALS = {
    3: (wire.connect("c", level=3, name="MQIsdp"), b"\x20\x02\0\x03"),
    4: (wire.connect("c"), b"\x20\x02\0\x03"),
    5: (wire5.connect("c"), b"\0\x97"),
    6: (wire5.connect("c", level=6), b"\0\x84"),
}


@pytest.mark.parametrize("level", REFUSALS)
def test_a_client_beyond_the_limit_is_told(bench: Bench, level: int) -> None:
    """By CONNACK, as its level has it; its will is not published, and it gets no session."""
    bench.set_limits(connections=0)
    protocol, transport = stranger(bench)
    said, refusal = REFUSALS[level]
    protocol.dataReceived(said)
    told = transport.value()
    assert told[0] == 0x20 and refusal in (told, told[2:4])
    assert transport.disconnecting and not bench.service.connections
    assert (level in (3, 4, 5)) == bool(bench.edge.counters.get("connections.refused"))
    assert "c" not in bench.edge.edge.clients.sessions
    protocol.connectionLost()
    assert not bench.service.surplus


def test_refusal_obeys_the_client(bench: Bench) -> None:
    """Without its reason where the client's maximum packet size has no room for one."""
    bench.set_limits(connections=0)
    protocol, transport = stranger(bench)
    protocol.dataReceived(wire5.connect("c", properties=[(wire5.MAXIMUM_PACKET, 5)]))
    assert transport.value() == b"\x20\x03\0\x97\0"


def test_strangers_beyond_the_limit_are_few(bench: Bench) -> None:
    """The oldest of too many is closed unheard, and all of them after `limits.connect_timeout`."""
    bench.set_limits(connections=0)
    all_of_them = [stranger(bench) for _ in range(MOST_SURPLUS + 2)]
    closed = [transport.disconnecting for _, transport in all_of_them]
    assert closed == [True, True] + [False] * MOST_SURPLUS
    assert len(bench.service.surplus) == MOST_SURPLUS
    assert not all_of_them[0][1].value()
    assert bench.edge.counters.get("connections.refused") == 2
    bench.clock.advance(10.0 + 2 * GRAIN)
    for protocol, transport in all_of_them:
        assert transport.disconnecting and not transport.value()
        protocol.connectionLost()
    assert not bench.service.surplus


def test_refused_clients_that_do_not_leave_are_few(bench: Bench) -> None:
    """A refused connection counts until it is lost: its client may keep it open."""
    bench.set_limits(connections=0)
    for number in range(3 * MOST_SURPLUS):
        protocol, _ = stranger(bench)
        protocol.dataReceived(wire5.connect(f"c{number}"))
    assert len(bench.service.surplus) == MOST_SURPLUS
    assert bench.edge.counters.get("connections.refused") == 3 * MOST_SURPLUS


def test_place_that_is_free_by_then_is_given(bench: Bench) -> None:
    """A client may leave between the connection of another one and its CONNECT."""
    bench.set_limits(connections=1)
    first, _ = stranger(bench)
    second, transport = stranger(bench)
    first.connectionLost()
    second.dataReceived(wire5.connect("c"))
    bench.edge.settle()
    bench.turn.end()
    assert transport.value()[2:4] == b"\0\0"
    assert list(bench.service.connections) == [second] and not bench.service.surplus


@pytest.mark.parametrize("expiry", [None, 60])
def test_client_that_returns_has_its_own_place(bench: Bench, expiry: int | None) -> None:
    """A half-open connection would have it until its keep-alive ends [MQTT-3.1.4-2]."""
    bench.set_limits(connections=1)
    half_open = accepted(bench, "c", expiry)
    other, refusal = stranger(bench)
    other.dataReceived(wire5.connect("other"))
    assert refusal.value()[2:4] == b"\0\x97" and not half_open.disconnecting
    other.connectionLost()

    accepted(bench, "c", expiry, present=expiry is not None)
    assert half_open.disconnecting
    assert half_open.value()[:3] == bytes((0xE0, half_open.value()[1], 0x8E))
    assert len(bench.service.connections) == 1 and not bench.service.surplus
    assert bench.edge.counters.get("connections.refused") == 1


def accepted(bench: Bench, name: str, expiry: int | None, *, present: bool = False) -> Wire:
    """The connection of a client that got CONNACK, which is read."""
    protocol, transport = stranger(bench)
    protocol.dataReceived(wire5.connect(name, clean=expiry is None, expiry=expiry))
    bench.edge.settle()
    bench.turn.end()
    assert transport.value()[2:4] == bytes((present, 0))
    transport.clear()
    return transport


def test_connections_beyond_the_limit_end_with_the_node(bench: Bench) -> None:
    """A node that stops waits for none of them."""
    bench.set_limits(connections=0)
    _, transport = stranger(bench)
    bench.service.stop()
    assert transport.disconnecting
