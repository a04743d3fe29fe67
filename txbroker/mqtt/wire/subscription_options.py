"""The options byte of a filter in a SUBSCRIBE (section 3.8.3.1 of MQTT 5.0). Pure."""

from __future__ import annotations

import attrs

from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation


@attrs.frozen
class SubscriptionOptions:
    """
    The options of a subscription; those of a 3.1.1 client are its QoS alone.

    `retain_handling` says when retained messages are sent: 0 at each SUBSCRIBE, 1 if the
    subscription is new, 2 never.
    """

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    @classmethod
    def from_byte(cls, byte: int) -> SubscriptionOptions:
        """Return the options of a legal byte."""
        return cls(byte & 3, byte & NO_LOCAL != 0, byte & 8 != 0, byte >> 4 & 3)

    @property
    def byte(self) -> int:
        """Return the byte of these options."""
        return (
            self.qos
            | self.no_local << 2
            | self.retain_as_published << 3
            | self.retain_handling << 4
        )


NO_LOCAL = 0x04


def check_options(byte: int) -> None:
    """Raise `ProtocolViolation` unless the byte has legal options."""
    if byte & 0xC0:
        # [MQTT-3.8.3-5]
        raise ProtocolViolation("MQTT-3.8.3-5", "A SUBSCRIBE sets reserved bits of the options.")
    if byte & 0x03 == 3:
        raise _error("A SUBSCRIBE asks for QoS 3.")
    if byte & 0x30 == 0x30:
        raise _error("A SUBSCRIBE has the retain handling 3.")


def _error(reason: str) -> ProtocolViolation:
    code = ReasonCode.PROTOCOL_ERROR
    return ProtocolViolation("section 3.8.3.1", reason, reason_code=code)
