"""What a holder keeps of a session that went to another node, and its record."""

from __future__ import annotations

from typing import Any

import attrs

from txbroker.directory.entry import pack, unpack


@attrs.frozen(kw_only=True)
class Tombstone:
    """
    It went to `node`, which is known to use it once `confirmed`. Until then the taker may ask
    whether it was released, so this outlives a session of the same id that is begun here later.
    `since`: what the node had lived when it went, in microseconds.
    """

    node: str
    token: bytes
    incarnation: int
    confirmed: bool = False
    since: int = 0


def tombstones_record(tombstones: tuple[Tombstone, ...]) -> bytes:
    """What is stored of an id."""
    return pack(
        [
            [one.node, one.token.hex(), one.incarnation, one.confirmed, one.since]
            for one in tombstones
        ]
    )


def tombstones_from(record: bytes, lived: int) -> tuple[Tombstone, ...]:
    """The mirror of `tombstones_record`; `lived`: what the node has lived, now."""
    fields, _ = unpack(record)
    return tuple(_tombstone(one, lived) for one in fields)


def _tombstone(fields: list[Any], lived: int) -> Tombstone:
    """One of an earlier version is as old as this look at it."""
    node, token, incarnation, confirmed, *rest = fields
    return Tombstone(
        node=node,
        token=bytes.fromhex(token),
        incarnation=incarnation,
        confirmed=confirmed,
        since=rest[0] if rest else lived,
    )
