"""The rows of a zone's tables: marks of streams, and unclaimed inheritances."""

from __future__ import annotations

from txbroker.delegation.zone_snapshot import EdgeInterest, MarkKey
from txbroker.journal.zone_journal import Unclaimed
from txbroker.v1 import state_pb2


def mark_name(key: MarkKey) -> bytes:
    """Return the key of a stream's mark."""
    edge, incarnation, zone, stream = key
    return f"{edge} {incarnation} {stream} {zone}".encode()


def mark_value(key: MarkKey, sequence: int) -> bytes:
    """Return the row of a stream's mark."""
    edge, incarnation, zone, stream = key
    mark = state_pb2.StoredMark(
        edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
    )
    return mark.SerializeToString()


def mark_from(value: bytes) -> tuple[MarkKey, int]:
    """Return the stream and the sequence number of a stored mark."""
    mark = state_pb2.StoredMark.FromString(value)
    return (mark.edge, mark.incarnation, mark.zone, mark.stream), mark.sequence


def unclaimed_value(entry: Unclaimed) -> bytes:
    """Return the row of an unclaimed inheritance."""
    stored = state_pb2.StoredUnclaimed(
        edge=entry.interest.edge,
        incarnation=entry.interest.incarnation,
        filters=entry.interest.filters,
        apexes=entry.apexes,
        heard=entry.heard,
    )
    return stored.SerializeToString()


def unclaimed_from(value: bytes) -> Unclaimed:
    """Return the stored unclaimed inheritance."""
    stored = state_pb2.StoredUnclaimed.FromString(value)
    interest = EdgeInterest(
        edge=stored.edge, incarnation=stored.incarnation, filters=tuple(stored.filters)
    )
    return Unclaimed(interest=interest, apexes=dict(stored.apexes), heard=dict(stored.heard))
