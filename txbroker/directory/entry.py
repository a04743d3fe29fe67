"""
A directory entry: the holder of a client id's session, and the order of two claims to one id.

Rules that this file alone keeps:

- A kept session (clean session 0) has an *incarnation*, which grows with each change of the holder.
  Of two entries the greater incarnation counts; of two equal ones, the greater node name.
- A clean session ends the session that it found. Its entry counts above every incarnation up to
  `replaces`, and below any later one. A clean session never counts above a kept session that it has
  not seen. Otherwise a late message of a dead connection would end a session promised since.
- Of two clean sessions with equal `replaces`, the greater `incarnation` counts, then the node name.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from txbroker.model.errors import StoreError
from txbroker.mqtt.wire.packets import Will

Order = tuple[int, int, int, str]

RECORD = 1
"""Version of the records that `pack` writes."""


@attrs.frozen(kw_only=True)
class DirectoryWill:
    """
    A will, and the connection that it belongs to: `number` in the life `life` of its node.

    Client id, node and life name a stream of wills; `number` is the sequence: together, the origin
    id.
    """

    life: int
    number: int
    will: Will


@attrs.frozen(kw_only=True, weakref_slot=False)
class DirectoryEntry:
    """`node` holds the session of `client_id`; the module docstring defines the numbers."""

    client_id: str
    node: str
    incarnation: int
    persistent: bool
    replaces: int = 0
    testament: DirectoryWill | None = None

    @property
    def order(self) -> Order:
        """Return the sort key: of two entries of one client id, the greater counts."""
        if self.persistent:
            return (self.incarnation, 0, 0, self.node)
        return (self.replaces, 1, self.incarnation, self.node)

    @property
    def generation(self) -> int:
        """
        Return the incarnation of the last known kept session; later kept sessions have a greater
        one.
        """
        return self.incarnation if self.persistent else self.replaces

    @property
    def past(self) -> int:
        """
        Return the generation up to which the entry proves that other sessions of the id have ended.
        """
        return self.incarnation - 1 if self.persistent else self.replaces

    def above(self, other: DirectoryEntry) -> DirectoryEntry:
        """Return this entry with numbers that count above `other`."""
        if self.persistent:
            return attrs.evolve(self, incarnation=max(self.incarnation, other.generation + 1))
        return attrs.evolve(
            self,
            replaces=max(self.replaces, other.generation),
            incarnation=max(self.incarnation, other.incarnation + 1),
        )


# -- records: JSON for the small fields, bytes behind it


# `json.dumps` constructs an encoder at each call.
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def pack(fields: list[Any], tail: bytes = b"") -> bytes:
    """Encode a record of the store."""
    head = _to_json([RECORD, *fields]).encode()
    return len(head).to_bytes(4, "big") + head + tail


def unpack(record: bytes) -> tuple[list[Any], bytes]:
    """
    Decode the arguments of `pack`; raises `StoreError` for damaged bytes or an unknown version.
    """
    try:
        end = 4 + int.from_bytes(record[:4], "big")
        version, *fields = json.loads(record[4:end])
    except (ValueError, TypeError) as error:
        raise StoreError("a record of the client directory is not readable") from error
    if version != RECORD:
        raise StoreError(
            f"a record of the client directory has version {version}, not {RECORD};"
            " start the txbroker that wrote it"
        )
    return fields, record[end:]


def testament_fields(directory_will: DirectoryWill | None) -> list[Any]:
    """Return a will's fields without its payload."""
    if directory_will is None:
        return []
    will = directory_will.will
    fields = [directory_will.life, directory_will.number, will.topic, will.qos, will.retain]
    if will.properties or will.delay:
        fields += [will.delay, will.properties.hex()]
    return fields


def testament_from(fields: list[Any], payload: bytes) -> DirectoryWill | None:
    """Decode a will: the inverse of `testament_fields`."""
    if not fields:
        return None
    life, number, topic, qos, retain, *rest = fields
    delay, properties = rest or (0, "")
    will = Will(
        topic=topic,
        payload=payload,
        qos=qos,
        retain=retain,
        properties=bytes.fromhex(properties),
        delay=delay,
    )
    return DirectoryWill(life=life, number=number, will=will)
