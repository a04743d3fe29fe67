"""
The codes that a server sends at levels 3 and 4, and the error that ends a connection.

Sections and clauses are those of the OASIS text of MQTT 3.1.1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from txbroker.model.errors import PeerError
from txbroker.mqtt.wire.reason_codes import ReasonCode


class ConnackCode(IntEnum):
    """Return codes of CONNACK (table 3.1)."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


SUBACK_FAILURE: Final = 0x80
"""The code of a refused filter in SUBACK, in place of the granted QoS (section 3.9.3)."""


class ProtocolViolation(PeerError):
    """
    A peer broke a rule of MQTT; the caller must close its connection.

    `rule` is the clause, such as "MQTT-2.2.2-2", or the section or setting if the rule has no
    number. `reason` is one sentence. `connack` is the code of a CONNACK to send before closing;
    None: none is sent [MQTT-4.8.0-1]. `reason_code` is what a client of level 5 is told, in CONNACK
    or DISCONNECT. `frame` is the packet for the log, if any.
    """

    frame: tuple[int, bytes] = (0, b"")

    def __init__(
        self,
        rule: str,
        reason: str,
        connack: ConnackCode | None = None,
        *,
        reason_code: ReasonCode = ReasonCode.MALFORMED_PACKET,
    ) -> None:
        super().__init__(f"{reason} [{rule}]")
        self.rule = rule
        self.reason = reason
        self.connack = connack
        self.reason_code = reason_code


def wrong_answer(packet_id: int) -> ProtocolViolation:
    """
    Return the violation for an acknowledgement of a kind that its message in flight does not
    expect.

    An ignored one would leave the message in the window for ever, and a window of one would stall.
    """
    reason = f"An acknowledgement of packet identifier {packet_id} is not what its message wants."
    return ProtocolViolation("MQTT-4.8.0-1", reason, reason_code=ReasonCode.PROTOCOL_ERROR)
