"""
Which packet is legal now on a client's connection.

Frames in, legal packets out; whatever is illegal raises `ProtocolViolation`, and then the only
thing to do is to close (after the CONNACK that the violation names, if it names one).
"""

from __future__ import annotations

from typing import Final

from txbroker.mqtt.wire.decoder import decode
from txbroker.mqtt.wire.packets import (
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from txbroker.mqtt.wire.return_codes import ConnackCode, ProtocolViolation

CONNECT_BYTE = 0x10
"""With which a CONNECT begins, and so every connection of a client."""


LEGAL: Final[frozenset[type]] = frozenset(  # [MQTT-3.1.0-2]: no second CONNECT
    {
        Publish,
        Puback,
        Pubrec,
        Pubrel,
        Pubcomp,
        Subscribe,
        Unsubscribe,
        Pingreq,
        Disconnect,
    }
)
"""What a client may send after its CONNECT, which comes first [MQTT-3.1.0-1]."""


def judge(first_byte: int, body: bytes, *, is_first: bool) -> Packet:
    """
    The packet that came next; raises `ProtocolViolation`, with the `frame`, where it is not legal.
    """
    try:
        packet = decode(first_byte, body)
        if is_first:
            if not isinstance(packet, Connect):
                name = type(packet).__name__.upper()
                raise ProtocolViolation("MQTT-3.1.0-1", f"The first packet is CONNECT, not {name}.")
            if not packet.client_id and not packet.clean_session:
                raise ProtocolViolation(
                    "MQTT-3.1.3-8",
                    "An empty client id needs a clean session.",
                    ConnackCode.IDENTIFIER_REJECTED,
                )
        elif type(packet) not in LEGAL:
            raise _misplaced(packet)
    except ProtocolViolation as violation:
        violation.frame = first_byte, body
        raise
    return packet


def judge_beginning(first_byte: int) -> None:
    """
    Raises `ProtocolViolation` where a first packet that is not complete yet cannot be a CONNECT.
    Another protocol's greeting seldom makes a whole packet: it is told at its first byte, or its
    sender would wait for an answer while the rest of that "packet" is waited for.
    """
    if first_byte != CONNECT_BYTE:
        violation = ProtocolViolation(
            "MQTT-3.1.0-1",
            f"The first packet is CONNECT and begins with 10, not {first_byte:02x}.",
        )
        violation.frame = first_byte, b""
        raise violation


def _misplaced(packet: Packet) -> ProtocolViolation:
    if isinstance(packet, Connect):
        return ProtocolViolation("MQTT-3.1.0-2", "A connection has one CONNECT.")
    name = type(packet).__name__.upper()
    return ProtocolViolation("MQTT-4.8.0-1", f"A client does not send {name}.")
