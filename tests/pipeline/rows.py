"""Message rows for tests, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pyarrow as pa

from txbroker.pipeline.source.row_schema import MESSAGE_ARROW, PROPERTIES

START = datetime(2026, 3, 1, 22, tzinfo=UTC)

Row = dict[str, Any]

NO_PROPERTIES: Row = dict.fromkeys(PROPERTIES)
LISTED: Row = {
    "expiry": 4_000_000_000,
    "payload_format": 1,
    "content_type": "text/plain",
    "response_topic": "answers/ü",
    "correlation_data": b"\0\xff",
    "user_properties": [{"name": name, "value": value} for name, value in ("b1", "a2", "b3")],
}
"""What a message of MQTT 5.0 may have."""


def message(zone: str, offset: int, **fields: Any) -> Row:
    """One row, a minute after the other; each third one has properties."""
    return {
        "zone": zone,
        "epoch": 1,
        "offset": offset,
        "topic": f"{zone}/t{offset % 3}".lstrip("/"),
        "payload": str(offset).encode(),
        "qos": 1,
        "retain": False,
        "client_id": "c",
        "node": "n",
        "created": START + timedelta(minutes=offset),
        **(LISTED if offset % 3 == 2 else NO_PROPERTIES),
        **fields,
    }


def messages(zones: Iterable[str], offsets: Iterable[int], **fields: Any) -> list[Row]:
    """The same offsets of several zones."""
    numbers = list(offsets)
    return [message(zone, offset, **fields) for zone in zones for offset in numbers]


def shuffled(rows: Sequence[Row], seed: int = 0) -> list[Row]:
    """In another order."""
    return random.Random(seed).sample(rows, len(rows))


def table(rows: Sequence[Row]) -> pa.Table:
    """As Arrow has them."""
    return pa.Table.from_pylist(list(rows), schema=MESSAGE_ARROW)


def plain(value: Any) -> Any:
    """A value of a row, as it can be compared: Spark and Arrow have kinds of their own."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [(pair["name"], pair["value"]) for pair in value]
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.astimezone(UTC)  # Spark's, in the local time of this process
    return value


def in_order(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows of any kind as tuples in one order, to be compared."""
    names = MESSAGE_ARROW.names
    found = [tuple(plain(row[name]) for name in names) for row in rows]
    return sorted(found, key=lambda row: row[:3])


class Published:
    """
    In place of `txbroker.pipeline.source.sink.SinkTopics`: topics and JSON that were published.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, root: str) -> Self:
        return self

    def publish(self, rows: Any, name: str) -> None:
        assert ["topic", "payload", "qos", "retain"] == rows.columns
        for row in rows.collect():
            assert (1, True) == (row["qos"], row["retain"])
            self.messages.append((row["topic"], json.loads(bytes(row["payload"]))))

    def forget(self, name: str) -> None:
        """There is nothing to forget."""
