"""The tombstone of a session that moved to another node, and its record."""

from __future__ import annotations

from typing import Any

import attrs

from txbroker.directory.entry import pack, unpack


@attrs.frozen(kw_only=True)
class Tombstone:
    """
    The session moved to `node`; `confirmed`: that node is known to use its copy.

    Until then the taker may ask whether the copy was released. Thus the tombstone outlives a later
    session of the same id here. `since`: the node's lived time at the move, in microseconds.
    """

    node: str
    token: bytes
    incarnation: int
    confirmed: bool = False
    since: int = 0


def tombstones_record(tombstones: tuple[Tombstone, ...]) -> bytes:
    """Encode the tombstones of an id."""
    return pack(
        [
            [one.node, one.token.hex(), one.incarnation, one.confirmed, one.since]
            for one in tombstones
        ]
    )


def tombstones_from(record: bytes, lived: int) -> tuple[Tombstone, ...]:
    """Decode `tombstones_record`; `lived`: the node's lived time now, in microseconds."""
    fields, _ = unpack(record)
    return tuple(_tombstone(one, lived) for one in fields)


def _tombstone(fields: list[Any], lived: int) -> Tombstone:
    """Decode one tombstone; an earlier version of it has no age, and counts from `lived`."""
    node, token, incarnation, confirmed, *rest = fields
    return Tombstone(
        node=node,
        token=bytes.fromhex(token),
        incarnation=incarnation,
        confirmed=confirmed,
        since=rest[0] if rest else lived,
    )
