"""Converts between wire messages and values of zones and links."""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.model.log_position import HOLDERS, JournalHolder, JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.v1 import link_pb2, types_pb2


def cut_to_wire(cut: ZoneCut) -> types_pb2.Cut:
    """Convert a cut to its wire message."""
    return types_pb2.Cut(apex=cut.apex, epoch=cut.epoch, node=cut.node, grpc=cut.grpc)


def cut_from_wire(cut: types_pb2.Cut) -> ZoneCut:
    """Convert a wire message to a cut."""
    return ZoneCut(apex=cut.apex, epoch=cut.epoch, node=cut.node, grpc=cut.grpc)


def claim_to_wire(apex: str, processed: StreamPosition | None) -> link_pb2.Claim:
    """Convert a claim to its wire message."""
    if processed is None:
        return link_pb2.Claim(apex=apex)
    return link_pb2.Claim(apex=apex, epoch=processed.epoch, offset=processed.offset)


def claims_from_wire(claims: Iterable[link_pb2.Claim], epoch: int) -> dict[str, int | None]:
    """Convert claims; each gets the last processed offset of the owner's present epoch, or None."""
    return {claim.apex: claim.offset if claim.epoch == epoch else None for claim in claims}


def key_from_mark(mark: types_pb2.Mark) -> MarkKey:
    """Return the stream that a mark is for."""
    return (mark.edge, mark.incarnation, mark.zone, mark.stream)


def mark_to_wire(key: MarkKey, sequence: int) -> types_pb2.Mark:
    """Convert a mark to its wire message."""
    edge, incarnation, zone, stream = key
    return types_pb2.Mark(
        edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
    )


def holders_from_wire(low_water: link_pb2.LowWater) -> dict[JournalId, tuple[JournalHolder, ...]]:
    """Return the holders of the most records by part; a dishonest list is cut to its first ones."""
    return {
        JournalId(mark.zone, mark.epoch): tuple(
            JournalHolder(one.client_id, one.offset) for one in mark.holders[:HOLDERS]
        )
        for mark in low_water.kept
        if mark.holders
    }
