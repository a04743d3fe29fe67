"""
The rules for legal packets on a client's connection.

Theory of operation. Frames come in, and legal packets go out. A connection has two states: before
CONNECT only CONNECT is legal; after it, the packets of `LEGAL`. An illegal packet raises
`ProtocolViolation`. The caller must then close the connection, after the CONNACK that the violation
names, if any.
"""

from __future__ import annotations

from typing import Final

from txbroker.mqtt.wire.connect_decoder import LEVEL_5 as BEGINS_LEVEL_5
from txbroker.mqtt.wire.decoder import CONNECT, decode
from txbroker.mqtt.wire.packets import (
    LEVEL_4,
    LEVEL_5,
    Auth,
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
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ConnackCode, ProtocolViolation

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
        Auth,
    }
)
"""Packets that a client may send after CONNECT, the first packet [MQTT-3.1.0-1]."""

OF_CLIENTS: Final = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.DISCONNECT_WITH_WILL,
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.MALFORMED_PACKET,
        ReasonCode.PROTOCOL_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        ReasonCode.TOPIC_ALIAS_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.MESSAGE_RATE_TOO_HIGH,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.ADMINISTRATIVE_ACTION,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
"""Reason codes of a client's DISCONNECT (section 3.14.2.1); all others are a server's."""


def judge(first_byte: int, body: bytes, *, is_first: bool, level: int = LEVEL_4) -> Packet:
    """
    Decode the next packet of a connection of this level.

    Raises `ProtocolViolation`, with the `frame`, if the packet is illegal.
    """
    try:
        packet = decode(first_byte, body, level)
        if is_first:
            if not isinstance(packet, Connect):
                name = type(packet).__name__.upper()
                raise _error("MQTT-3.1.0-1", f"The first packet is CONNECT, not {name}.")
            is_free = packet.clean_session or packet.protocol_level >= LEVEL_5
            if not packet.client_id and not is_free:
                raise ProtocolViolation(
                    "MQTT-3.1.3-8",
                    "An empty client id needs a clean session.",
                    ConnackCode.IDENTIFIER_REJECTED,
                    reason_code=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                )
        elif type(packet) not in LEGAL:
            raise _misplaced(packet)
        elif isinstance(packet, Publish) and packet.subscription_identifiers:
            # [MQTT-3.3.4-6]
            raise _error("MQTT-3.3.4-6", "A client's PUBLISH has a subscription identifier.")
        elif isinstance(packet, Disconnect):
            _judge_disconnect(packet)
    except ProtocolViolation as violation:
        violation.frame = first_byte, body
        raise
    return packet


def _judge_disconnect(packet: Disconnect) -> None:
    """Refuse what only a server's DISCONNECT may have; the client is gone in any case."""
    if packet.reason not in OF_CLIENTS:
        # [MQTT-3.14.2-1]
        reason = f"A client's DISCONNECT has the reason code {packet.reason:#04x}."
        raise _error("MQTT-3.14.2-1", reason)
    if packet.properties.server_reference is not None:
        raise _error("section 3.14.2.2.5", "A client's DISCONNECT has a server reference.")


def judge_length(first_byte: int, body: bytes, level: int) -> None:
    """Check a packet whose remaining length is padded; raises `ProtocolViolation` at level 5."""
    is_5 = first_byte == CONNECT and body.startswith(BEGINS_LEVEL_5)
    if level >= LEVEL_5 or is_5:
        # [MQTT-1.5.5-1]
        reason = "A remaining length has more bytes than it needs."
        violation = ProtocolViolation("MQTT-1.5.5-1", reason)
        violation.frame = first_byte, body
        raise violation


def judge_beginning(first_byte: int) -> None:
    """
    Check the first byte of an incomplete first packet; raises `ProtocolViolation` if no CONNECT.

    Another protocol's greeting seldom forms a whole packet. Without this check, its sender and this
    node would wait for each other.
    """
    if first_byte != CONNECT:
        violation = _error(
            "MQTT-3.1.0-1",
            f"The first packet is CONNECT and begins with 10, not {first_byte:02x}.",
        )
        violation.frame = first_byte, b""
        raise violation


def _misplaced(packet: Packet) -> ProtocolViolation:
    if isinstance(packet, Connect):
        return _error("MQTT-3.1.0-2", "A connection has one CONNECT.")
    name = type(packet).__name__.upper()
    return _error("MQTT-4.8.0-1", f"A client does not send {name}.")


def _error(rule: str, reason: str) -> ProtocolViolation:
    return ProtocolViolation(rule, reason, reason_code=ReasonCode.PROTOCOL_ERROR)
