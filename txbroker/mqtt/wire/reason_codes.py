"""The reason codes of MQTT 5.0 (section 2.4), and the packets in which each is legal. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from txbroker.mqtt.wire.packet_kind import PacketKind


class ReasonCode(IntEnum):
    """
    Reason codes (table 2-6); from 0x80 on, a code tells of a failure.

    `SUCCESS` is also *granted QoS 0* and *normal disconnection*.
    """

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


def _codes(text: str) -> frozenset[int]:
    return frozenset(bytes.fromhex(text))


_RECEIVED = _codes("00 10 80 83 87 90 91 97 99")
_RELEASED = _codes("00 92")

LEGAL_CODES: Final[dict[PacketKind, tuple[frozenset[int], str]]] = {
    # The codes of each packet, and the clause that allows no others.
    PacketKind.CONNACK: (
        _codes("00 80 81 82 83 84 85 86 87 88 89 8A 8C 90 95 97 99 9A 9B 9C 9D 9F"),
        "MQTT-3.2.2-8",
    ),
    PacketKind.PUBACK: (_RECEIVED, "MQTT-3.4.2-1"),
    PacketKind.PUBREC: (_RECEIVED, "MQTT-3.5.2-1"),
    PacketKind.PUBREL: (_RELEASED, "MQTT-3.6.2-1"),
    PacketKind.PUBCOMP: (_RELEASED, "MQTT-3.7.2-1"),
    PacketKind.SUBACK: (_codes("00 01 02 80 83 87 8F 91 97 9E A1 A2"), "MQTT-3.9.3-2"),
    PacketKind.UNSUBACK: (_codes("00 11 80 83 87 8F 91"), "MQTT-3.11.3-2"),
    PacketKind.DISCONNECT: (
        _codes(
            "00 04 80 81 82 83 87 89 8B 8D 8E 8F 90 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F A0 A1 A2"
        ),
        "MQTT-3.14.2-1",
    ),
    PacketKind.AUTH: (_codes("00 18 19"), "MQTT-3.15.2-1"),
}
