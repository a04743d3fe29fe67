"""
The options byte of a filter in a SUBSCRIBE (section 3.8.3.1 of MQTT 5.0). Pure.

The byte of a 3.1.1 client is its QoS alone.
"""

from __future__ import annotations

from typing import Final

from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation

QOS_BITS: Final = 0x03
NO_LOCAL: Final = 0x04
AS_PUBLISHED: Final = 0x08
DELIVERY_BITS: Final = NO_LOCAL | AS_PUBLISHED
"""The bits that count for each delivery, so a subscription keeps them."""


def retain_handling(byte: int) -> int:
    """
    Return when retained messages are sent: 0 at each SUBSCRIBE, 1 if the subscription is new, 2
    never.
    """
    return byte >> 4 & 3


def check_options(byte: int) -> None:
    """Raise `ProtocolViolation` unless the byte has legal options."""
    if byte & 0xC0:
        # [MQTT-3.8.3-5]
        raise ProtocolViolation("MQTT-3.8.3-5", "A SUBSCRIBE sets reserved bits of the options.")
    if byte & QOS_BITS == 3:
        raise _error("A SUBSCRIBE asks for QoS 3.")
    if retain_handling(byte) == 3:
        raise _error("A SUBSCRIBE has the retain handling 3.")


def _error(reason: str) -> ProtocolViolation:
    code = ReasonCode.PROTOCOL_ERROR
    return ProtocolViolation("section 3.8.3.1", reason, reason_code=code)
