"""Converts the property lists of stored records to columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from txbroker.mqtt.wire.property_list import USER_PROPERTY, parts_of


class FilledProperties(NamedTuple):
    """
    The properties of records as the buffers of Arrow arrays.

    The first buffer of a column has one bit per record, lowest first: 1 if the record has the
    property. `expiry` is int64, `payload_format` int8; the others have ends (see `Texts`) and data.
    The ends of `user_properties` are places in `names` and `values`, which have a text for each.
    """

    expiry: tuple[bytes, bytes]
    payload_format: tuple[bytes, bytes]
    content_type: tuple[bytes, bytes, bytes]
    response_topic: tuple[bytes, bytes, bytes]
    correlation_data: tuple[bytes, bytes, bytes]
    user_properties: tuple[bytes, bytes]
    names: tuple[bytes, bytes]
    values: tuple[bytes, bytes]


def property_columns(lists: Mapping[int, bytes], rows: int) -> FilledProperties | None:
    """
    Return the columns of `rows` records; `lists` has the plain properties of those that have some.

    None: no record has any.
    """
    if not lists:
        return None
    found = [_decode(lists.get(row, b"")) for row in range(rows)]
    users = [one.get(USER_PROPERTY, []) for one in found]
    pairs = [pair for some in users for pair in some]
    return FilledProperties(
        _numbers("q", [one.get(0x02) for one in found]),
        _numbers("b", [one.get(0x01) for one in found]),
        _optional_texts([one.get(0x03) for one in found]),
        _optional_texts([one.get(0x08) for one in found]),
        _optional_texts([one.get(0x09) for one in found]),
        (_bits([some or None for some in users]), _ends(users)),
        _texts([name for name, _ in pairs]),
        _texts([value for _, value in pairs]),
    )


def _decode(properties: bytes) -> dict[int, Any]:
    """Return the values of a plain list by identifier; user properties are a list of pairs."""
    values: dict[int, Any] = {}
    for at, identifier in parts_of(properties):
        if identifier == USER_PROPERTY:
            name = _sized(properties, at + 1)
            value = _sized(properties, at + 3 + len(name))
            values.setdefault(USER_PROPERTY, []).append((name, value))
        else:
            values[identifier] = _READ[identifier](properties, at + 1)
    return values


def _sized(properties: bytes, at: int) -> bytes:
    return properties[at + 2 : at + 2 + int.from_bytes(properties[at : at + 2])]


_READ: dict[int, Callable[[bytes, int], Any]] = {
    0x01: lambda properties, at: properties[at],
    0x02: lambda properties, at: int.from_bytes(properties[at : at + 4]),
    0x03: _sized,
    0x08: _sized,
    0x09: _sized,
}


def _numbers(kind: str, values: Sequence[int | None]) -> tuple[bytes, bytes]:
    return _bits(values), array(kind, [value or 0 for value in values]).tobytes()


def _optional_texts(values: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes]:
    return _bits(values), *_texts([value or b"" for value in values])


def _texts(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    return _ends(values), b"".join(values)


def _ends(values: Sequence[Sequence[Any]]) -> bytes:
    ends = array("i", [0])
    for value in values:
        ends.append(ends[-1] + len(value))
    return ends.tobytes()


def _bits(values: Sequence[object]) -> bytes:
    bits = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        bits[row >> 3] |= (value is not None) << (row & 7)
    return bytes(bits)
