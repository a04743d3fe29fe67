"""Publishes that a client of MQTT 5.0 is refused with a reason code, in place of silence."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.support import wire, wire5
from tests.support.wire5 import PAYLOAD_FORMAT, PROBLEM_INFO, REASON_STRING, Answer
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.mqtt.transport.protocol import MqttFactory
from txbroker.mqtt.transport.read_pause import HOLD_TIMEOUT

from .test_protocol import EMPTY, FULL, Bench, Dialogue, Wire

QUOTA, PAYLOAD = 0x97, 0x99
TEXT = [(PAYLOAD_FORMAT, 1)]
NO_TEXT = b"\xff"


@attrs.define
class Dialogue5(Dialogue):
    """A client of level 5."""

    def answers(self) -> list[Answer]:
        """What came since the last call."""
        buffer = bytearray(self.transport.value())
        self.transport.clear()
        found = []
        while (raw := wire.cut_frame(buffer)) is not None:
            answer = wire5.parse(raw)
            assert isinstance(answer, Answer)
            found.append(answer)
        return found

    def codes(self) -> list[tuple[str, int, int]]:
        """Kind, packet id and reason code of what came."""
        return [
            (wire.NAMES[one.kind], one.packet_id, one.codes[0] if one.codes else 0)
            for one in self.answers()
        ]


def opened(bench: Bench) -> Dialogue5:
    protocol = MqttFactory(bench.service).buildProtocol(None)
    transport = Wire()
    protocol.makeConnection(transport)
    return Dialogue5(protocol, transport)


def client_of(bench: Bench, name: str = "five", **options: Any) -> Dialogue5:
    client = opened(bench)
    client.say(wire5.connect(name, **options))
    bench.edge.settle()
    assert [("CONNACK", 0, 0)] == client.codes()
    return client


def publish(payload: bytes, packet_id: int, qos: int = 1, **options: Any) -> bytes:
    return wire5.publish("x/t", payload, qos=qos, packet_id=packet_id, **options)


@pytest.mark.parametrize("qos", [1, 2])
def test_disk_without_room_is_told(qos: int) -> None:
    """After the time after which an older client is closed; then at once, until there is room."""
    bench = Bench()
    kind = {1: "PUBACK", 2: "PUBREC"}[qos]
    client, older = client_of(bench), bench.client("older")
    bench.set_disk(FULL)
    client.say(publish(b"1", 1, qos), publish(b"2", 2, qos))
    older.say(wire.publish("x/t", b"3", qos=1, packet_id=1))
    bench.clock.advance(HOLD_TIMEOUT - 0.5)
    assert [] == client.codes()

    bench.clock.advance(0.6)
    assert [(kind, 1, QUOTA), (kind, 2, QUOTA)] == client.codes()
    assert (False, True) == (client.transport.disconnecting, older.transport.disconnecting)
    client.say(publish(b"4", 3, qos), wire.PING)
    assert [(kind, 3, QUOTA)] == client.codes()[:1]
    assert 3 == bench.edge.counters.get("publish.refused.quota")
    assert 1 == bench.edge.counters.get("clients.held_too_long")

    bench.set_disk(EMPTY)
    client.say(publish(b"5", 1, qos))
    assert ["5"] == bench.published(), "what was refused is nowhere, and its packet id is free"

    bench.clock.advance(2 * HOLD_TIMEOUT)
    bench.set_disk(FULL)
    client.say(publish(b"6", 4, qos))
    bench.clock.advance(1.0)
    assert [] == [one for one in client.codes() if one[1] == 4], "the time begins anew"
    bench.set_disk(EMPTY)
    assert ["6"] == bench.published()


def test_repeat_of_a_stored_publish_is_not_refused() -> None:
    """Its owner has it: the client would take it for lost. The connection ends as an older one."""
    bench = Bench()
    client = client_of(bench)
    client.say(publish(b"1", 1, 2))
    bench.edge.edge.publisher.on_accepted(bench.edge.route("x"), 1)
    bench.turn.end()
    assert [("PUBREC", 1, 0)] == client.codes()
    bench.set_disk(FULL)
    client.say(publish(b"2", 2))
    bench.clock.advance(HOLD_TIMEOUT + 0.1)
    assert [("PUBACK", 2, QUOTA)] == client.codes()

    client.say(publish(b"1", 1, 2, dup=True))
    bench.clock.advance(HOLD_TIMEOUT + 0.1)

    assert [("DISCONNECT", 0, QUOTA)] == client.codes()


@pytest.mark.parametrize("qos", [1, 2])
def test_outbox_without_room_is_told(qos: int) -> None:
    """The same for publishes that wait for an owner that is away."""
    bench = Bench(EdgeLimits(outbox=0))
    kind = {1: "PUBACK", 2: "PUBREC"}[qos]
    client, older = client_of(bench), bench.client("older")
    bench.edge.lose("x")
    bench.edge.edge.publisher.on_unreachable(bench.edge.route("x"))
    client.say(publish(b"1", 1, qos), publish(b"2", 2, qos))
    older.say(wire.publish("x/t", b"3", qos=1, packet_id=1))
    assert not client.is_read

    bench.clock.advance(HOLD_TIMEOUT + 0.1)
    assert [(kind, 1, QUOTA), (kind, 2, QUOTA)] == client.codes()
    assert (False, True) == (client.transport.disconnecting, older.transport.disconnecting)
    client.say(publish(b"4", 1, qos))
    assert [(kind, 1, QUOTA)] == client.codes()
    assert 3 == bench.edge.counters.get("publish.refused.quota")

    bench.edge.take()
    bench.edge.online("x")
    client.say(publish(b"5", 3, qos))
    assert "5" in bench.published()
    assert not {"1", "2", "4"} & set(bench.published())


def test_reasons_are_for_those_who_want_them() -> None:
    """Request problem information 0: no reason string in PUBACK [MQTT-3.1.2-29]."""
    bench = Bench()
    bench.set_limits(checks_utf8=True)
    for wanted in (True, False):
        properties = [] if wanted else [(PROBLEM_INFO, 0)]
        client = client_of(bench, f"c{wanted}", properties=properties)
        client.say(publish(NO_TEXT, 1, properties=TEXT))
        (found,) = client.answers()
        assert (PAYLOAD, wanted) == (found.code, REASON_STRING in found)


@pytest.mark.parametrize("checks", [True, False])
def test_payload_is_text_if_it_says_so(checks: bool) -> None:
    """In one write with others; QoS 0 has no answer, so the connection ends."""
    bench = Bench()
    bench.set_limits(checks_utf8=checks)
    client = client_of(bench)

    client.say(
        publish("ä".encode(), 1, properties=TEXT),
        publish(NO_TEXT, 2, properties=TEXT),
        publish(NO_TEXT, 3, 2, properties=TEXT),
        publish(NO_TEXT, 4, properties=[(PAYLOAD_FORMAT, 0)]),
        publish(NO_TEXT, 5),
    )
    taken = 3 if checks else 5
    assert taken == len(bench.edge.take())
    refused = [("PUBACK", 2, PAYLOAD), ("PUBREC", 3, PAYLOAD)]
    assert (refused if checks else []) == client.codes()
    assert len(refused) * checks == bench.edge.counters.get("publish.refused.payload_format")

    client.say(wire5.publish("x/t", "ä".encode(), properties=TEXT))
    client.say(wire5.publish("x/t", NO_TEXT, properties=TEXT))
    assert (1 if checks else 2) == len(bench.edge.take())
    assert ([("DISCONNECT", 0, PAYLOAD)] if checks else []) == client.codes()
    assert checks == client.transport.disconnecting


@pytest.mark.parametrize("checks", [True, False])
def test_will_is_text_if_it_says_so(checks: bool) -> None:
    """CONNACK tells it."""
    bench = Bench()
    bench.set_limits(checks_utf8=checks)
    client = opened(bench)
    will = wire5.Will(topic="x/w", payload=NO_TEXT, properties=TEXT)

    client.say(wire5.connect("c", will=will))

    assert [("CONNACK", 0, PAYLOAD if checks else 0)] == client.codes()
    assert checks == client.transport.disconnecting


def test_clients_of_a_node_that_retires_are_sent_elsewhere() -> None:
    """Connected ones, and those that come: to the node that gets their sessions."""
    bench = Bench()
    client, older = client_of(bench), bench.client("older")

    bench.service.close_all("heir:1883")

    (found,) = client.answers()
    assert (0x9C, "heir:1883") == (found.code, found[wire5.SERVER_REFERENCE])
    assert older.transport.disconnecting
    late = opened(bench)
    late.say(wire5.connect("late"))
    (found,) = late.answers()
    assert (0x9C, "heir:1883") == (found.code, found[wire5.SERVER_REFERENCE])
    assert late.transport.disconnecting
