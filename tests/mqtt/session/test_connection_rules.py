"""Which packet a client may send when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mqtt.wire.packet_table import LEGAL as PACKETS
from txbroker.mqtt.session.connection_rules import LEGAL, judge, judge_beginning
from txbroker.mqtt.wire.decoder import Framer
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.packets import Connect, Packet, Publish
from txbroker.mqtt.wire.return_codes import ConnackCode, ProtocolViolation

CONNECT = encode(Connect(client_id="c"))
KINDS = {type(row.packet): row.packet for row in PACKETS if not isinstance(row.packet, Connect)}
FROM_SERVERS = {"Connack", "Suback", "Unsuback", "Pingresp"}


class Reading:
    """A connection that is read."""

    def __init__(self) -> None:
        self._framer = Framer(1000)
        self._is_first = True

    def receive(self, data: bytes) -> Iterator[Packet]:
        self._framer.feed(data)
        for first_byte, body in self._framer.frames():
            packet = judge(first_byte, body, is_first=self._is_first)
            self._is_first = False
            yield packet
        if self._is_first and self._framer.first_byte is not None:
            judge_beginning(self._framer.first_byte)


def connected() -> Reading:
    connection = Reading()
    list(connection.receive(CONNECT))
    return connection


def rule_of(connection: Reading, *packets: Packet) -> str | None:
    try:
        for packet in packets:
            list(connection.receive(encode(packet)))
    except ProtocolViolation as violation:
        return violation.rule
    return None


@pytest.mark.parametrize("packet", KINDS.values(), ids=lambda packet: type(packet).__name__)
def test_first_packet_is_connect(packet: Packet) -> None:
    """Nothing else [MQTT-3.1.0-1]."""
    assert "MQTT-3.1.0-1" == rule_of(Reading(), packet)


@pytest.mark.parametrize("packet", KINDS.values(), ids=lambda packet: type(packet).__name__)
def test_client_sends_what_a_client_may_send(packet: Packet) -> None:
    """Packets that only a server sends close the connection."""
    is_legal = type(packet).__name__ not in FROM_SERVERS

    assert (None if is_legal else "MQTT-4.8.0-1") == rule_of(connected(), packet)
    assert is_legal == (type(packet) in LEGAL)


def test_second_connect_is_refused() -> None:
    """A connection has one [MQTT-3.1.0-2]."""
    assert "MQTT-3.1.0-2" == rule_of(connected(), Connect(client_id="c"))


def test_packets_before_a_fault_count() -> None:
    """The violation is raised in its turn, with the frame for the log."""
    connection = connected()
    packets = connection.receive(encode(Publish("t", b"1")) + b"\xf0\x01x")

    assert Publish("t", b"1") == next(packets)
    with pytest.raises(ProtocolViolation) as caught:
        next(packets)
    assert (0xF0, b"x") == caught.value.frame


def test_empty_client_id_needs_a_clean_session() -> None:
    """It is refused with a CONNACK of its own [MQTT-3.1.3-8]."""
    connection = Reading()
    with pytest.raises(ProtocolViolation) as caught:
        list(connection.receive(encode(Connect(client_id="", clean_session=False))))

    assert ("MQTT-3.1.3-8", ConnackCode.IDENTIFIER_REJECTED) == (
        caught.value.rule,
        caught.value.connack,
    )
    assert rule_of(Reading(), Connect(client_id="")) is None


def test_other_protocol_is_told_at_its_first_byte() -> None:
    """Its greeting would be waited on for the rest of a packet; a slow CONNECT is not hurried."""
    with pytest.raises(ProtocolViolation) as caught:
        list(Reading().receive(b"GE"))
    slow = Reading()
    trickle = [packet for byte in CONNECT for packet in slow.receive(bytes([byte]))]

    assert "MQTT-3.1.0-1" == caught.value.rule
    assert [Connect(client_id="c")] == trickle


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"\x8b", "MQTT-3.14.2-1"),
        (b"\x87\0", "MQTT-3.14.2-1"),
        (b"\0\4\x1c\0\1x", "section 3.14.2.2.5"),
        (b"", None),
        (b"\4", None),
        (b"\x99\0", None),
    ],
)
def test_disconnect_of_a_client_is_no_servers(body: bytes, rule: str | None) -> None:
    """Some reason codes, and a server reference, are a server's alone."""
    if rule is None:
        judge(0xE0, body, is_first=False, level=5)
        return
    with pytest.raises(ProtocolViolation) as caught:
        judge(0xE0, body, is_first=False, level=5)

    assert (rule, 0x82, (0xE0, body)) == (
        caught.value.rule,
        caught.value.reason_code,
        caught.value.frame,
    )
