"""Columns become record batches, without copies and with the schema that Spark is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from tests.core.test_property_columns import ALL
from tests.pipeline.rows import NO_PROPERTIES
from txbroker.core import Columns, Filled
from txbroker.journal.store.record_format import encode_records
from txbroker.mqtt.wire.message import Message
from txbroker.pipeline.source.arrow_batches import to_arrow
from txbroker.pipeline.source.row_schema import MESSAGE_ARROW

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
STAMP = (TIME - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def columns_of(*batches: list[Message]) -> Filled:
    columns = Columns()
    first = 5
    for messages in batches:
        columns.add(first, STAMP, encode_records(messages, {}, "k"), len(messages))
        first += 100
    return columns.finish()


def a_row(offset: int, message: Message) -> dict[str, object]:
    return {
        "zone": "home/küche",
        "epoch": 3,
        "offset": offset,
        "topic": message.topic,
        "payload": message.payload,
        "qos": message.qos,
        "retain": message.retain,
        "client_id": message.client_id,
        "node": message.edge or "k",
        "created": TIME,
        **NO_PROPERTIES,
    }


def test_rows_are_what_was_published() -> None:
    first = [
        Message("home/küche/a", b"\0\xff", 1, client_id="c"),
        Message("home/küche", b"", 2, True, client_id="d", edge="e"),
    ]
    second = [Message("home/küche/a", bytes([n]), n % 3, n % 5 == 0) for n in range(20)]

    batch = to_arrow(columns_of(first, second), "home/küche", 3)

    batch.validate(full=True)
    assert MESSAGE_ARROW == batch.schema
    expected = [a_row(5 + n, one) for n, one in enumerate(first)]
    expected += [a_row(105 + n, one) for n, one in enumerate(second)]
    assert expected == batch.to_pylist()


def test_properties_are_columns() -> None:
    """A message without any has nulls, a batch without any, too."""
    first = [Message("a", b"1"), Message("a", b"2", properties=ALL), Message("a", b"3")]
    first += [Message("a", b"4", properties=b"\x02\0\0\0\0"), Message("a", b"")]

    batch = to_arrow(columns_of(first), "z", 1)

    batch.validate(full=True)
    assert MESSAGE_ARROW == batch.schema
    every = {
        "expiry": 0xFFFFFFFE,
        "payload_format": 1,
        "content_type": "tëxt",
        "response_topic": "answers/1",
        "correlation_data": b"\0\xff",
        "user_properties": [
            {"name": name, "value": value} for name, value in (("b", "1"), ("a", ""), ("b", "2"))
        ],
    }
    expected = [NO_PROPERTIES, every, NO_PROPERTIES, NO_PROPERTIES | {"expiry": 0}, NO_PROPERTIES]
    assert expected == [{name: row[name] for name in NO_PROPERTIES} for row in batch.to_pylist()]
    some = to_arrow(columns_of(first), "z", 1, ["user_properties", "offset", "expiry"])
    assert [None, 0xFFFFFFFE, None, 0, None] == some.column("expiry").to_pylist()


def test_no_rows() -> None:
    batch = to_arrow(Columns().finish(), "z", 1)

    batch.validate(full=True)
    assert (MESSAGE_ARROW, 0) == (batch.schema, batch.num_rows)


@pytest.mark.parametrize("columns", [["topic"], ["created", "zone"], ["client_id"], []])
def test_some_columns(columns: list[str]) -> None:
    filled = columns_of([Message("a", b"1", client_id="c"), Message("b", b"2", client_id="d")])

    batch = to_arrow(filled, "z", 1, columns)

    assert columns == batch.schema.names
    whole = to_arrow(filled, "z", 1).to_pylist()
    assert 2 == batch.num_rows
    assert [{name: row[name] for name in columns} for row in whole] == batch.to_pylist()


def test_topics_and_payloads_are_not_copied() -> None:
    filled = columns_of([Message("a", b"payload")])

    batch = to_arrow(filled, "z", 1)

    for name, data in (("topic", filled.topics.data), ("payload", filled.payloads.data)):
        assert pa.py_buffer(data).address == batch.column(name).buffers()[2].address
