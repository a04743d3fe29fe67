"""Converts between wire messages and values of zones and links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.model.log_position import HOLDERS, JournalHolder, JournalId, LogPosition
from txbroker.model.log_positions import PlaceSet
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


def group_report_to_wire(group: str, report: GroupReport) -> link_pb2.GroupReport:
    """Convert an edge's report on a group to its wire message."""
    again = [place for place, was_sent in report.returned.items() if was_sent]
    never = [place for place, was_sent in report.returned.items() if not was_sent]
    return link_pb2.GroupReport(
        group=group,
        members=report.members,
        limit=report.limit,
        durable=report.is_durable,
        request=report.request,
        first=report.is_first,
        held=_places_of(report.held),
        done=_places_of(report.done),
        returned=_places(never),
        left=_places(again),
        over=report.is_over,
        moved=report.is_moved,
    )


def group_report_from_wire(report: link_pb2.GroupReport) -> GroupReport:
    """Convert a wire message to an edge's report on a group."""
    returned = dict.fromkeys(_positions(report.returned), False)
    returned.update(dict.fromkeys(_positions(report.left), True))
    return GroupReport(
        members=report.members,
        limit=report.limit,
        is_durable=report.durable,
        request=report.request,
        is_first=report.first,
        held=_place_set(report.held),
        done=_place_set(report.done),
        returned=returned,
        is_over=report.over,
        is_moved=report.moved,
    )


def _places(positions: Iterable[LogPosition]) -> list[link_pb2.Places]:
    found: dict[JournalId, link_pb2.Places] = {}
    for part, offset in positions:
        if part not in found:
            found[part] = link_pb2.Places(zone=part.zone, epoch=part.epoch)
        found[part].offsets.append(offset)
    return list(found.values())


def _places_of(places: PlaceSet) -> list[link_pb2.Places]:
    return [
        link_pb2.Places(zone=part.zone, epoch=part.epoch, offsets=offsets)
        for part, offsets in places.parts()
    ]


def _place_set(places: Iterable[link_pb2.Places]) -> PlaceSet:
    found = PlaceSet()
    for place in places:
        found.update(JournalId(place.zone, place.epoch), place.offsets)
    return found


def _positions(places: Iterable[link_pb2.Places]) -> Iterator[LogPosition]:
    for place in places:
        part = JournalId(place.zone, place.epoch)
        for offset in place.offsets:
            yield LogPosition(part, offset)


def holders_from_wire(low_water: link_pb2.LowWater) -> dict[JournalId, tuple[JournalHolder, ...]]:
    """Return the holders of the most records by part; a dishonest list is cut to its first ones."""
    return {
        JournalId(mark.zone, mark.epoch): tuple(
            JournalHolder(one.client_id, one.offset) for one in mark.holders[:HOLDERS]
        )
        for mark in low_water.kept
        if mark.holders
    }
