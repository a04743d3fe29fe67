"""Message rows for tests, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pyarrow as pa

from txbroker.pipeline.source.row_schema import MESSAGE_ARROW

START = datetime(2026, 3, 1, 22, tzinfo=UTC)

Row = dict[str, Any]


def message(zone: str, offset: int, **fields: Any) -> Row:
    """One row, a minute after the other."""
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


def in_order(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows of any kind as tuples in one order, to be compared."""
    names = MESSAGE_ARROW.names
    found = [tuple(_plain(row[name]) for name in names) for row in rows]
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


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.astimezone(UTC)  # Spark's, in the local time of this process
    return value
