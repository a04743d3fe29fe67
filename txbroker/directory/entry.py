"""
What the directory knows of a client id, and which of two claims to it counts.

Rules that live here and nowhere else:

- a session that is kept (clean session 0) has an *incarnation*, which grows whenever the session
  changes hands; of two, the greater counts, of two equal ones that of the greater node name;
- a clean session ends what it found: it counts above every incarnation up to `replaces`, and below
  any later one. It never beats a kept session that it has not seen, so that the late word of a
  connection long dead cannot end a session that was promised to somebody since;
- of two clean sessions that replace the same, the greater `incarnation` counts, then the node name.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from txbroker.model.errors import StoreError
from txbroker.mqtt.wire.packets import Will

Order = tuple[int, int, int, str]

RECORD = 1
"""Version of the records below."""


@attrs.frozen(kw_only=True)
class DirectoryWill:
    """
    A will and the connection that it belongs to: number `number` in the life `life` of its node.

    (client id, node, life) names a stream of wills, `number` the place in it: the will's origin id.
    """

    life: int
    number: int
    will: Will


@attrs.frozen(kw_only=True, weakref_slot=False)
class DirectoryEntry:
    """`node` holds the session of `client_id`; see the rules above for the numbers."""

    client_id: str
    node: str
    incarnation: int
    persistent: bool
    replaces: int = 0
    testament: DirectoryWill | None = None

    @property
    def order(self) -> Order:
        """Of two entries of one client id the greater counts."""
        if self.persistent:
            return (self.incarnation, 0, 0, self.node)
        return (self.replaces, 1, self.incarnation, self.node)

    @property
    def generation(self) -> int:
        """The incarnation of the last kept session that is known; a later one is greater."""
        return self.incarnation if self.persistent else self.replaces

    @property
    def past(self) -> int:
        """The generation up to which other sessions of the id have ended, where this is known."""
        return self.incarnation - 1 if self.persistent else self.replaces

    def above(self, other: DirectoryEntry) -> DirectoryEntry:
        """This entry with numbers so that it counts above `other`."""
        if self.persistent:
            return attrs.evolve(self, incarnation=max(self.incarnation, other.generation + 1))
        return attrs.evolve(
            self,
            replaces=max(self.replaces, other.generation),
            incarnation=max(self.incarnation, other.incarnation + 1),
        )


# -- records: JSON for the small fields, bytes behind it


_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode  # `dumps` makes one each time


def pack(fields: list[Any], tail: bytes = b"") -> bytes:
    """A record of the store."""
    head = _to_json([RECORD, *fields]).encode()
    return len(head).to_bytes(4, "big") + head + tail


def unpack(record: bytes) -> tuple[list[Any], bytes]:
    """What `pack` was given; raises `StoreError`."""
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


def testament_fields(testament: DirectoryWill | None) -> list[Any]:
    """The fields of a testament but its payload."""
    if testament is None:
        return []
    will = testament.will
    return [testament.life, testament.number, will.topic, will.qos, will.retain]


def testament_from(fields: list[Any], payload: bytes) -> DirectoryWill | None:
    """The mirror of `testament_fields`."""
    if not fields:
        return None
    life, number, topic, qos, retain = fields
    will = Will(topic=topic, payload=payload, qos=qos, retain=retain)
    return DirectoryWill(life=life, number=number, will=will)
