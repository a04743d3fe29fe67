"""CONNECTs of level 5 that end while they wait for their session; no sockets, no time passes."""

from __future__ import annotations

import pytest

from tests.support import wire5
from txbroker.mqtt.transport.protocol import MqttFactory

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
