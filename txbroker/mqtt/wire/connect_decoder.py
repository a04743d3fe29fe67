"""
The decoder of CONNECT, which tells its own level: 3, 4 or 5.

Clauses without another note have the same number in the texts of MQTT 3.1.1 and 5.0.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from txbroker.mqtt.wire.fields import FieldReader, text_of, trailing, truncated
from txbroker.mqtt.wire.level5_clauses import names_level_5
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.packets import Connect, Will
from txbroker.mqtt.wire.properties import (
    may_limit,
    packet_limit,
    read_properties,
    split_properties,
)
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ConnackCode, ProtocolViolation

_CONNECT_FIELDS = Struct("!BHH")  # flags, keep-alive, length of the client id

_PROTOCOLS: Final = {
    # Keys are the first bytes of a CONNECT of each protocol.
    len(name).to_bytes(2) + name.encode() + bytes((level,)): (name, level)
    for name, level in (("MQTT", 4), ("MQIsdp", 3))
}

LEVEL_5: Final = b"\0\4MQTT\5"
"""The first bytes of a CONNECT of MQTT 5.0."""


def decode_connect(body: bytes) -> Connect:
    """Decode the body of a CONNECT; raises `ProtocolViolation`."""
    size = 7
    known = _PROTOCOLS.get(body[:7])
    if known is None:
        if body.startswith(LEVEL_5):
            return _decode_level_5(body)
        size = 9
        known = _PROTOCOLS.get(body[:9])
        if known is None:
            raise _not_spoken(FieldReader(body))
    name, level = known
    if len(body) < size + 5:
        raise truncated()
    flags, keep_alive, id_size = _CONNECT_FIELDS.unpack_from(body, size)
    start = size + 5
    stop = start + id_size
    will = username = password = None
    if flags & ~0x02:
        # [MQTT-3.1.2-9] [MQTT-3.1.2-19] [MQTT-3.1.2-21]
        _check_flags(flags)
        if flags & 0xC0 == 0x40:
            # [MQTT-3.1.2-22]
            raise ProtocolViolation("MQTT-3.1.2-22", "A CONNECT has a password but no user name.")
        fields = FieldReader(body, stop)
        will = _will(flags, fields) if flags & 0x04 else None
        username = fields.text() if flags & 0x80 else None
        password = fields.binary() if flags & 0x40 else None
        fields.end()
    elif stop != len(body):
        raise truncated() if stop > len(body) else trailing()
    client_id, is_clean = text_of(body[start:stop]), flags & 0x02 != 0
    # Keywords would take as long as all fields above.
    return Connect(client_id, is_clean, keep_alive, will, username, password, name, level)


@names_level_5
def _decode_level_5(body: bytes) -> Connect:
    """Decode a CONNECT of level 5, in which a password needs no user name."""
    fields = FieldReader(body, len(LEVEL_5))
    flags, keep_alive = fields.byte(), fields.uint16()
    _check_flags(flags)
    properties = read_properties(fields.property_list(), PacketKind.CONNECT)
    client_id = fields.text()  # [MQTT-3.1.3-3]
    # [MQTT-3.1.2-9] [MQTT-3.1.2-17] [MQTT-3.1.2-19] of the text of MQTT 5.0
    will = _level_5_will(flags, fields) if flags & 0x04 else None
    username = fields.text() if flags & 0x80 else None
    password = fields.binary() if flags & 0x40 else None
    fields.end()
    return Connect(
        client_id=client_id,
        clean_session=flags & 0x02 != 0,
        keep_alive=keep_alive,
        will=will,
        username=username,
        password=password,
        protocol_level=5,
        properties=properties,
    )


def refusal_level(body: bytes) -> int:
    """
    Return the level at which the sender of an illegal CONNECT reads its CONNACK: 4 or 5.

    A later level than 5 is told by the latest CONNACK. But many a client of 3.1.1 tries other
    levels with its own layout, and bridges set the highest bit.
    """
    at = 2 + int.from_bytes(body[:2])
    level = body[at] if at < len(body) else 0
    if level == 5:
        return 4 if body.startswith(b"\0\6MQIsdp") else 5
    if level < 5 or level > 0x7F or not body.startswith(b"\0\4MQTT"):
        return 4
    try:
        decode_connect(b"\0\4MQTT\4" + body[at + 1 :])
    except ProtocolViolation:
        return 5
    return 4


LEAST_CONNACK: Final = 5
"""Bytes of a CONNACK of level 5 without properties."""


def refusal_limit(body: bytes, *, is_whole: bool) -> int:
    """
    Return the largest CONNACK that the sender of an illegal CONNECT of level 5 accepts; 0: any.

    Where a limit is there and cannot be read, the CONNACK must do without properties.
    """
    at = 2 + int.from_bytes(body[:2])
    if body[at : at + 1] != LEVEL_5[-1:]:
        return LEAST_CONNACK  # Fields of a later level may have another layout.
    fields = FieldReader(body, at + 1)
    limit: int | None = None
    try:
        fields.byte(), fields.uint16()
        limit = packet_limit(fields.property_list().rest())
    except ProtocolViolation:
        if is_whole and not may_limit(body[at:]):
            limit = 0
    return LEAST_CONNACK if limit is None else limit


def _not_spoken(fields: FieldReader) -> ProtocolViolation:
    """Return the violation of a CONNECT with a protocol that is not spoken."""
    name = fields.text()
    reason_code = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    if name not in ("MQTT", "MQIsdp"):
        # [MQTT-3.1.2-1]
        reason = "A CONNECT names a protocol other than MQTT."
        return ProtocolViolation("MQTT-3.1.2-1", reason, reason_code=reason_code)
    # [MQTT-3.1.2-2] Later fields of another protocol level may have another layout: they are not
    # read.
    reason = f"Protocol level {fields.byte()} of {name} is not spoken here."
    code = ConnackCode.UNACCEPTABLE_PROTOCOL_VERSION
    return ProtocolViolation("MQTT-3.1.2-2", reason, code, reason_code=reason_code)


def _check_flags(flags: int) -> None:
    if flags & 0x01:
        # [MQTT-3.1.2-3]
        raise ProtocolViolation("MQTT-3.1.2-3", "The reserved flag of a CONNECT is set.")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            # [MQTT-3.1.2-14]
            raise ProtocolViolation("MQTT-3.1.2-14", "A will has QoS 3.")
    elif flags & 0x18:
        # [MQTT-3.1.2-13]
        raise ProtocolViolation("MQTT-3.1.2-13", "A CONNECT without a will has a will QoS.")
    elif flags & 0x20:
        # [MQTT-3.1.2-15]
        raise ProtocolViolation("MQTT-3.1.2-15", "A CONNECT without a will retains it.")


def _will(flags: int, fields: FieldReader) -> Will:
    topic = fields.topic_name()  # [MQTT-3.1.3-10]
    payload = fields.binary()
    return Will(topic=topic, payload=payload, qos=flags >> 3 & 3, retain=flags & 0x20 != 0)


def _level_5_will(flags: int, fields: FieldReader) -> Will:
    carried, properties = split_properties(fields.property_list(), PacketKind.WILL)
    return Will(
        topic=fields.topic_name(),  # [MQTT-3.1.3-11]
        payload=fields.binary(),
        qos=flags >> 3 & 3,
        retain=flags & 0x20 != 0,
        properties=carried,
        delay=properties.will_delay or 0,
    )
