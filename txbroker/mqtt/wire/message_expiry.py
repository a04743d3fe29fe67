"""
The message expiry interval in a property list (MQTT 5.0, section 3.3.2.3.3).

Nodes never compare their clocks: whoever hands a message on writes what is left of its interval.
An interval of 0 has passed, and no client gets the message.
"""

from __future__ import annotations

from typing import Final

from txbroker.mqtt.wire.property_list import parts_of

MESSAGE_EXPIRY: Final = 0x02


def expiry_of(properties: bytes) -> int | None:
    """Return the interval in seconds; None: the message does not expire."""
    place = _place(properties)
    return None if place is None else int.from_bytes(properties[place : place + 4])


def with_expiry(properties: bytes, seconds: float) -> bytes:
    """
    Return the properties with what is left of their interval, rounded up.

    Rounding must not add to the interval. A message from which no time was taken off may come here
    with a trifle more [MQTT-3.3.2-6].
    """
    place = _place(properties)
    if place is None:
        return properties
    left = min(max(-int(-seconds // 1), 0), int.from_bytes(properties[place : place + 4]))
    return properties[:place] + left.to_bytes(4) + properties[place + 4 :]


def aged(properties: bytes, seconds: float) -> bytes:
    """Return the properties with their interval less the seconds that the message has waited."""
    expiry = expiry_of(properties)
    return properties if expiry is None else with_expiry(properties, expiry - seconds)


def set_expiry(properties: bytes, seconds: int) -> bytes:
    """Return the properties with this interval, which is the first one if they had none."""
    if _place(properties) is not None:
        return with_expiry(properties, seconds)
    return bytes((MESSAGE_EXPIRY,)) + seconds.to_bytes(4) + properties


def _place(properties: bytes) -> int | None:
    """Return the position of the interval."""
    for at, identifier in parts_of(properties):
        if identifier == MESSAGE_EXPIRY:
            return at + 1
    return None
