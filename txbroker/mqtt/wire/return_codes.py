"""
The codes that a server sends, and the error that ends a connection.

Sections and clauses are those of the OASIS text of MQTT 3.1.1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from txbroker.model.errors import PeerError


class ConnackCode(IntEnum):
    """Return codes of CONNACK (table 3.1)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


SUBACK_FAILURE: Final = 0x80
"""What SUBACK says of a refused filter, in place of the granted QoS (section 3.9.3)."""


class ProtocolViolation(PeerError):
    """
    A peer broke a rule of MQTT; its connection has to be closed.

    `rule` is the clause, such as "MQTT-2.2.2-2", or the section or setting where the rule has no
    number. `reason` is one sentence. `connack` is the code to send in a CONNACK before closing, or
    None when nothing is to be sent [MQTT-4.8.0-1]. `frame`: the packet, where there is one, for the
    log.
    """

    frame: tuple[int, bytes] = (0, b"")

    def __init__(self, rule: str, reason: str, connack: ConnackCode | None = None) -> None:
        super().__init__(f"{reason} [{rule}]")
        self.rule = rule
        self.reason = reason
        self.connack = connack


def wrong_answer(packet_id: int) -> ProtocolViolation:
    """
    An acknowledgement of a kind that the message in flight does not want.

    Ignored, the message would stay in the window for ever, and a window of one would stall.
    """
    reason = f"An acknowledgement of packet identifier {packet_id} is not what its message wants."
    return ProtocolViolation("MQTT-4.8.0-1", reason)
