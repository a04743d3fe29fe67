"""What a server says to a client of level 5 that limits what it accepts."""

from __future__ import annotations

import pytest

from txbroker.mqtt.wire.decoder import decode
from txbroker.mqtt.wire.encoder import Answer, encode, encode_answer
from txbroker.mqtt.wire.packets import (
    Connack,
    Disconnect,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
)
from txbroker.mqtt.wire.properties import NO_PROPERTIES, Properties

PAIRS = tuple(("pending-zone", f"home/{number}") for number in range(9))
EXPLAINED = Properties(reason_string="It is so.", user_properties=PAIRS)
ANSWERS = [
    Connack(False, 0x87, EXPLAINED),
    Puback(7, 0x97, EXPLAINED),
    Pubrec(7, 0x97, EXPLAINED),
    Pubrel(7, 0x92, EXPLAINED),
    Pubcomp(7, 0x92, EXPLAINED),
    Disconnect(0x82, EXPLAINED),
    Suback(7, (0, 1, 0x80), EXPLAINED),
    Unsuback(7, (0, 0x11), EXPLAINED),
]


def decoded(data: bytes) -> Answer:
    packet = decode(data[0], data[2:] if data[1] < 128 else data[3:], 5)
    assert isinstance(packet, Answer)
    return packet


@pytest.mark.parametrize("packet", ANSWERS, ids=lambda packet: type(packet).__name__)
def test_explanation_has_as_much_room_as_there_is(packet: Answer) -> None:
    """The reason string goes first, then user properties from the end; never more than allowed."""
    whole = encode(packet, 5)
    plain = encode(type(packet)(*_fields(packet), NO_PROPERTIES), 5)

    assert whole == encode_answer(packet) == encode_answer(packet, len(whole))
    for most in range(len(plain), len(whole)):
        found = encode_answer(packet, most)
        properties = decoded(found).properties
        assert len(found) <= most
        assert properties.reason_string is None
        assert properties.user_properties == PAIRS[: len(properties.user_properties)]
        assert _fields(decoded(found)) == _fields(packet)
    assert decoded(encode_answer(packet, len(whole) - 1)).properties.user_properties
    assert encode_answer(packet, len(plain) - 1) == b""


@pytest.mark.parametrize("packet", ANSWERS, ids=lambda packet: type(packet).__name__)
def test_client_that_asks_for_no_problem_information(packet: Answer) -> None:
    """It gets explanations in CONNACK and DISCONNECT alone [MQTT-3.1.2-29]."""
    found = decoded(encode_answer(packet, is_brief=True)).properties

    is_told = isinstance(packet, Connack | Disconnect)
    assert found == (EXPLAINED if is_told else NO_PROPERTIES)


def test_older_levels_have_no_explanations() -> None:
    """And no limits."""
    packet = Suback(7, (0, 1), EXPLAINED)

    assert encode_answer(packet, 3, level=4) == encode(packet, 4)


def _fields(packet: Answer) -> tuple[object, ...]:
    if isinstance(packet, Connack):
        return packet.session_present, packet.return_code
    if isinstance(packet, Disconnect):
        return (packet.reason,)
    if isinstance(packet, Suback):
        return packet.packet_id, packet.return_codes
    if isinstance(packet, Unsuback):
        return packet.packet_id, packet.reasons
    return packet.packet_id, packet.reason
