"""
All rows of all journals, read from the nodes' journal service without anything of the pipeline.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tests.support.history import History
from txbroker.journal.store.record_format import decode_records
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.properties import decode_properties
from txbroker.storage.segment import Batch
from txbroker.v1.journal_pb2 import KeptPart, StoredBatch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """A message row, as architecture.md section 8 names its columns."""

    zone: str
    epoch: int
    offset: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    node: str
    created: datetime
    expiry: int | None
    payload_format: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    user_properties: tuple[tuple[str, str], ...] | None


def read(addresses: Iterable[str]) -> list[Row]:
    """Every row that the nodes at these gRPC addresses keep, each once, in order."""
    found: dict[tuple[str, int, int], Row] = {}
    for address in addresses:
        with History(address) as history:
            for part in history.parts().values():
                for row in _part(history, part):
                    key = row.zone, row.epoch, row.offset
                    assert found.setdefault(key, row) == row, f"two records at {key}"
    return sorted(found.values())


def _part(history: History, part: KeptPart) -> Iterable[Row]:
    at = part.first
    while at < part.end:
        for reply in history.replies(part.zone, part.epoch, start=at, end=part.end):
            for batch in reply.batches:
                yield from _batch(part, batch, at, part.end)
            assert reply.through > at, f"{part.zone!r} {part.epoch}: no way on from {at}"
            at = reply.through


def _batch(part: KeptPart, batch: StoredBatch, start: int, end: int) -> Iterable[Row]:
    stored = Batch(first=batch.first, count=batch.count, time=batch.time, body=batch.body)
    places = array("H", batch.places) or range(batch.count)
    for place, record in zip(places, decode_records(stored), strict=True):
        offset, message = batch.first + place, record.message
        if start <= offset < end:
            yield Row(
                zone=part.zone,
                epoch=part.epoch,
                offset=offset,
                topic=message.topic,
                payload=message.payload,
                qos=message.qos,
                retain=message.retain,
                client_id=message.client_id or "",
                node=message.edge or "",
                created=_EPOCH + timedelta(microseconds=batch.time),
                **_properties(message.properties),
            )


def _properties(raw: bytes) -> dict[str, Any]:
    found = decode_properties(raw, PacketKind.PUBLISH)
    return {
        "expiry": found.message_expiry,
        "payload_format": found.payload_format,
        "content_type": found.content_type,
        "response_topic": found.response_topic,
        "correlation_data": found.correlation_data,
        "user_properties": found.user_properties or None,
    }
